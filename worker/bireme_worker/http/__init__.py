"""The HTTP processes of a leader: OpenAI's routes on one side, the coordinator on the other.

They own everything that is text (JSON, chat templates, tokenising, stop strings, logprob texts) and nothing that is
tensors: torch is never imported here. Any number of them share one port.
"""
