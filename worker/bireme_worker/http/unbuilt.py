"""Fields of OpenAI's and vLLM's APIs that are known and not offered: refused by name, never accepted and ignored.

A value that asks for nothing (null, an empty list of functions, `modalities: ["text"]`) is let through, since many
clients send it.
"""

from collections.abc import Mapping
from typing import Any, Final

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "annotations": ([],),
    "audio": (),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Field → values that mean the same as leaving it out; null always does."""


def without_neutral(body: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the unbuilt fields whose value asks for nothing."""
    return {name: value for name, value in body.items() if not _asks_for_nothing(name, value)}


def _asks_for_nothing(name: str, value: object) -> bool:
    if name not in NEUTRAL:
        return False
    return value is None or any(type(value) is type(known) and value == known for known in NEUTRAL[name])
