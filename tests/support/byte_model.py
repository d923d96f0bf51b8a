"""A tiny random model whose tokens are bytes, with a chat template that knows tools and thoughts.

Every character beyond ASCII is spread over several tokens, steps are quick, and what a script lets the model say is
written as text.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bireme_worker.text.token_bytes import BYTE_LEVEL
from tests.checkpoints.tiny import save_tiny

END = "<|end|>"
PYTHON_TAG = "<|python_tag|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
END_ID = 256
VOCABULARY = 267
"""Odd, and a few ids have no text."""
_HEAD = (
    "{% if tools %}Tools: {{ tools | tojson }} Say TAG{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content or '' }}{% for call in m.tool_calls or [] %}TAG{{ call.function | tojson }}"
    "{% endfor %}<|end|>{% endfor %}assistant: "
)
_THOUGHT = (
    "{% if enable_thinking is defined %}{% if enable_thinking %}{{ '<think>\n' }}{% else %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
PLAIN = _HEAD.replace("TAG", "<tool_call>")
HERMES = PLAIN + _THOUGHT
LLAMA3 = _HEAD.replace("TAG", PYTHON_TAG)


def byte_tokenizer(*, special_marks: bool = False) -> Tokenizer:
    """Ids up to 255 are the bytes themselves. ``special_marks``: tags of thoughts and calls are special tokens."""
    spelled = dict(BYTE_LEVEL)
    tokenizer = Tokenizer(models.BPE(vocab=spelled, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(PYTHON_TAG, special=True)])
    marks = [AddedToken(mark, normalized=False, special=special_marks) for mark in MARKS]
    (tokenizer.add_special_tokens if special_marks else tokenizer.add_tokens)(marks)
    return tokenizer


def make_byte_model(directory: Path, template: str = HERMES, *, special_marks: bool = False, **overrides: Any) -> Path:
    """Write the checkpoint and return ``directory``."""
    sizes = {"vocab_size": VOCABULARY, "bos_token_id": END_ID, "eos_token_id": END_ID, "max_position_embeddings": 1024}
    save_tiny(directory, initializer_range=0.3, **{**sizes, **overrides})
    byte_tokenizer(special_marks=special_marks).save(str(directory / "tokenizer.json"))
    settings = {"chat_template": template, "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
