"""What a request will cost a group, in tokens, and how long that takes there, in seconds.

The router does not tokenise: about four bytes of English JSON make one token, and the journal's first line replaces the
guess by the true count. Output is guessed from what requests brought lately, never above the client's own limit.
Seconds are what makes groups of different parallelism and hardware comparable: tokens still to prefill at the group's
prefill rate, and every output token at the pace that its active KV blocks leave (a step reads all of them).
"""

from dataclasses import dataclass
from typing import Final

BYTES_PER_TOKEN: Final = 4
OUTPUT_GUESS: Final = 128.0
"""Tokens of output expected while no request has ended yet."""
BLOCK: Final = 16
"""Tokens of one KV block, the unit in which decode work is counted."""
_SAFETY: Final = 1.5
_WEIGHT: Final = 0.05


@dataclass(frozen=True)
class Cost:
    """Tokens still to be computed: prefill of the whole prompt, and decode over all choices."""

    prefill: int
    decode: int
    choices: int = 1

    @property
    def tokens(self) -> int:
        """All of them, the unit of fairness and of rate limits."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class Work:
    """What a group has before it: uncached tokens to prefill, and KV blocks that its open requests hold."""

    prefill: float
    blocks: float


@dataclass(frozen=True)
class Pace:
    """Prefill tokens per second, and decode in block-tokens per second (tokens of one stream times active blocks)."""

    prefill: float
    decode: float


def expected_cost(body_bytes: int, choices: int, max_tokens: int | None, typical_output: float) -> Cost:
    """The cost of a new request; ``typical_output`` is what ``typical`` learned."""
    decode = max(round(_SAFETY * typical_output), 1)
    if max_tokens is not None:
        decode = min(decode, max(max_tokens, 1))
    return Cost(prefill=max(body_bytes // BYTES_PER_TOKEN, 1), decode=decode * choices, choices=choices)


def remaining_cost(whole: Cost, prompt_tokens: int, output_tokens: int) -> Cost:
    """The cost of continuing: prompt and delivered output are computed again, only the rest is decoded."""
    decode = max(whole.decode - output_tokens, 1)
    return Cost(prefill=prompt_tokens + output_tokens, decode=decode, choices=whole.choices)


def blocks(context_tokens: int, choices: int) -> float:
    """KV blocks that a request holds: its context, and one block begun per choice."""
    return context_tokens / BLOCK + choices


def seconds(work: Work, cost: Cost, cached: float, pace: Pace) -> float:
    """How long the request takes on a group with this work, of which it finds ``cached`` prompt tokens computed."""
    prefill = (work.prefill + max(cost.prefill - cached, 1.0)) / pace.prefill
    active = work.blocks + blocks(cost.prefill, cost.choices)
    return prefill + cost.decode / cost.choices * active / pace.decode


def typical(mean: float, output_tokens: int) -> float:
    """The running mean of output lengths after one more request."""
    return mean + _WEIGHT * (output_tokens - mean)
