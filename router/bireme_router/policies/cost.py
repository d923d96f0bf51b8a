"""What a request will cost a group, in tokens, before anything is known but its size and its limits.

The router does not tokenise: about four bytes of English JSON make one token, and the journal's first line replaces the
guess by the true count. Output is guessed from what requests brought lately, never above the client's own limit.
"""

from dataclasses import dataclass
from typing import Final

BYTES_PER_TOKEN: Final = 4
OUTPUT_GUESS: Final = 128.0
"""Tokens of output expected while no request has ended yet."""
_SAFETY: Final = 1.5
_WEIGHT: Final = 0.05


@dataclass(frozen=True)
class Cost:
    """Tokens still to be computed: uncached prefill, and decode over all choices."""

    prefill: int
    decode: int


def expected_cost(body_bytes: int, choices: int, max_tokens: int | None, typical_output: float) -> Cost:
    """The cost of a new request; ``typical_output`` is what ``typical`` learned."""
    decode = max(round(_SAFETY * typical_output), 1)
    if max_tokens is not None:
        decode = min(decode, max(max_tokens, 1))
    return Cost(prefill=max(body_bytes // BYTES_PER_TOKEN, 1), decode=decode * choices)


def remaining_cost(whole: Cost, prompt_tokens: int, output_tokens: int) -> Cost:
    """The cost of continuing: prompt and delivered output are computed again, only the rest is decoded."""
    return Cost(prefill=prompt_tokens + output_tokens, decode=max(whole.decode - output_tokens, 1))


def typical(mean: float, output_tokens: int) -> float:
    """The running mean of output lengths after one more request."""
    return mean + _WEIGHT * (output_tokens - mean)
