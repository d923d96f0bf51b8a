"""Which of the usable groups gets a request: the cheapest of two drawn at random, and of those that hold its prefix.

Taking the cheapest of all would make every router run to the same group between two updates. Groups that computed the
prompt's beginning (or hold the session) are always looked at, but they win by their cost alone: the credit is worth
the prefill that it saves, so a crowded holder loses to an idle stranger. Of the caller's zone one is looked at first,
so that it wins where costs tie.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bireme_router.policies.pipeline import worth_waking
from bireme_router.policies.two_choices import draw_two

TIE: Final = 0.05
"""Costs tie that differ by less than so much of the request's own work, and the first drawn wins."""


class Candidate(NamedTuple):
    """A usable group. ``holds``: it has the prefix or the session; ``near``: it is in the caller's zone."""

    in_flight: int
    stages: int
    holds: bool
    near: bool = False


class Price(NamedTuple):
    """A request's cost at a group in seconds, and how much of that if nothing else were there."""

    seconds: float
    own: float


def place(candidates: Sequence[Candidate], price: Callable[[int], Price], draws: tuple[float, float]) -> int:
    """The index of the chosen one of ``candidates``, which must not be empty; ``draws`` are in [0, 1).

    ``price`` is asked for the few candidates that are compared, by index.
    """
    pool = worth_waking([(one.in_flight, one.stages) for one in candidates])
    options = [pool[drawn] for drawn in draw_two(len(pool), draws)]
    near = [index for index in pool if candidates[index].near]
    if near:
        options = list(dict.fromkeys([near[int(draws[0] * len(near))], *options]))
    options += [index for index, one in enumerate(candidates) if one.holds and index not in options]
    prices = [price(index) for index in options]
    best = min(prices)
    enough = best.seconds + TIE * best.own
    return next(index for index, one in zip(options, prices, strict=True) if one.seconds <= enough)
