"""Log probabilities in OpenAI's two forms: a list of objects for chat, parallel lists for completions.

A token that is a part of a character is written with U+FFFD in `token`; `bytes` tells it exactly.
"""

from collections.abc import Sequence
from typing import Any, Final

from bireme.wire.plan import Logprobs
from bireme_worker.http.choice import Scored
from bireme_worker.text.token_bytes import TokenBytes

LEAST: Final = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON can't write."""


def chat_logprobs(tokens: TokenBytes, scored: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    return {
        "content": [
            {
                **_entry(tokens, one.token, one.logprobs.chosen),
                "top_logprobs": [_entry(tokens, token, value) for token, value in one.logprobs.top],
            }
            for one in scored
            if one.logprobs is not None
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: TokenBytes, scored: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` object of a completion choice."""
    return {
        "text_offset": [one.offset for one in scored],
        "token_logprobs": [None if one.logprobs is None else max(one.logprobs.chosen, LEAST) for one in scored],
        "tokens": [_text(tokens, one.token) for one in scored],
        "top_logprobs": [None if one.logprobs is None else _by_text(tokens, one.token, one.logprobs) for one in scored],
    }


def prompt_logprobs(tokens: TokenBytes, scored: Sequence[Scored]) -> dict[str, Any]:
    """VLLM's `prompt_logprobs` of a choice: an object by id for each token but the first; nothing if none is told."""
    return {"prompt_logprobs": [_by_id(tokens, one) for one in scored]} if scored else {}


def _by_text(tokens: TokenBytes, token: int, logprobs: Logprobs) -> dict[str, float]:
    """The likeliest, and the token itself as OpenAI tells it too; of two that are written alike the likelier one."""
    values: dict[str, float] = {}
    for other, value in (*logprobs.top, (token, logprobs.chosen)):
        values.setdefault(_text(tokens, other), max(value, LEAST))
    return values


def _by_id(tokens: TokenBytes, one: Scored) -> dict[str, Any] | None:
    if one.logprobs is None:
        return None
    ranks = {token: place for place, (token, _) in enumerate(one.logprobs.top, start=1)}
    values = {one.token: one.logprobs.chosen, **dict(one.logprobs.top)}
    return {
        str(token): {"logprob": max(value, LEAST), "rank": ranks.get(token), "decoded_token": _text(tokens, token)}
        for token, value in values.items()
    }


def _entry(tokens: TokenBytes, token: int, value: float) -> dict[str, Any]:
    data = tokens.of(token, skip_special=False)
    return {"token": data.decode(errors="replace"), "logprob": max(value, LEAST), "bytes": list(data)}


def _text(tokens: TokenBytes, token: int) -> str:
    return tokens.of(token, skip_special=False).decode(errors="replace")
