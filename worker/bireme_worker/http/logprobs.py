"""Log probabilities in OpenAI's two forms: a list of objects for chat, parallel lists for completions.

A token that is a part of a character is written with U+FFFD in `token`; `bytes` tells it exactly.
"""

from collections.abc import Sequence
from typing import Any, Final

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
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: TokenBytes, scored: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` object of a completion choice."""
    return {
        "text_offset": [one.offset for one in scored],
        "token_logprobs": [max(one.logprobs.chosen, LEAST) for one in scored],
        "tokens": [_text(tokens, one.token) for one in scored],
        "top_logprobs": [
            {_text(tokens, token): max(value, LEAST) for token, value in one.logprobs.top} for one in scored
        ],
    }


def _entry(tokens: TokenBytes, token: int, value: float) -> dict[str, Any]:
    data = tokens.of(token, skip_special=False)
    return {"token": data.decode(errors="replace"), "logprob": max(value, LEAST), "bytes": list(data)}


def _text(tokens: TokenBytes, token: int) -> str:
    return tokens.of(token, skip_special=False).decode(errors="replace")
