"""Between text and token ids: tokenizer, chat template, streaming detokenizer, stop strings.

Nothing here imports torch: the HTTP processes use it, one asyncio loop each, and no object here is shared between
threads.
"""
