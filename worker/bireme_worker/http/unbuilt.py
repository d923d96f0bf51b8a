"""Fields of OpenAI's API that are known and not built: refused by name, never accepted and ignored.

A value that asks for nothing (null, an empty list of tools, `echo: false`) is let through, since many clients send it.
"""

from collections.abc import Mapping
from typing import Any, Final

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "annotations": ([],),
    "audio": (),
    "best_of": (1,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_json": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
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
