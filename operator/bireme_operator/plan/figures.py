"""What the routers counted of each version since a moment: requests, failures and times, and what can be said of them.

A version is a rendering of the pods and a checkpoint (`bireme.wire.routes.version`). Means are exact; how sure they are
is estimated from the buckets, as for any grouped data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import sqrt


@dataclass(frozen=True)
class Times:
    """How long something took. ``counts`` has how many fell into each bucket, by upper bound in seconds."""

    counts: tuple[tuple[float, int], ...] = ()
    total_s: float = 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.counts)

    @property
    def mean_s(self) -> float:
        """Their mean, 0 of none."""
        return self.total_s / self.count if self.count else 0.0

    @property
    def variance(self) -> float:
        """Their variance: that of the buckets' middles, and that inside a bucket as if it were filled evenly."""
        edges = [0.0, *(bound for bound, _ in self.counts)]
        # Nothing is known of what lies above the last bound: it is taken for a bucket as wide as all the others.
        spans = [(low, high if high != float("inf") else 2 * low) for low, high in pairwise(edges)]
        filled = [(low, high, count) for (low, high), (_, count) in zip(spans, self.counts, strict=True) if count]
        if not filled:
            return 0.0
        middle = sum((low + high) / 2 * count for low, high, count in filled) / self.count
        squares = (((low + high) / 2 - middle) ** 2 + (high - low) ** 2 / 12 for low, high, _ in filled)
        return sum(square * count for square, (_, _, count) in zip(squares, filled, strict=True)) / self.count

    def error_s(self, independent: int) -> float:
        """Return the standard error of the mean, when ``independent`` of the values say something new."""
        return sqrt(self.variance / independent) if independent else float("inf")

    def __add__(self, other: "Times") -> "Times":
        """Return both together."""
        counts = dict(self.counts)
        for bound, count in other.counts:
            counts[bound] = counts.get(bound, 0) + count
        return Times(tuple(sorted(counts.items())), self.total_s + other.total_s)

    def __sub__(self, other: "Times") -> "Times":
        """Return what came after ``other`` was counted."""
        less = Times(tuple((bound, -count) for bound, count in other.counts), -other.total_s)
        return self + less


@dataclass(frozen=True)
class Served:
    """What one version did: requests that it finished or failed, until the first token, and between tokens."""

    finished: int = 0
    failed: int = 0
    first_token: Times = Times()
    gap: Times = Times()

    @property
    def requests(self) -> int:
        """How many requests say something about it."""
        return self.finished + self.failed

    @property
    def failed_share(self) -> float:
        """How many of them failed, from 0 to 1."""
        return self.failed / self.requests if self.requests else 0.0

    def __add__(self, other: "Served") -> "Served":
        """Return both together."""
        return Served(
            self.finished + other.finished,
            self.failed + other.failed,
            self.first_token + other.first_token,
            self.gap + other.gap,
        )

    def __sub__(self, other: "Served") -> "Served":
        """Return what came after ``other`` was counted."""
        return Served(
            self.finished - other.finished,
            self.failed - other.failed,
            self.first_token - other.first_token,
            self.gap - other.gap,
        )


def together(parts: Iterable[Served]) -> Served:
    """Return all of them together."""
    return reduce(Served.__add__, parts, Served())


@dataclass(frozen=True)
class Figures:
    """What all routers together counted since ``since`` (Unix seconds), by version, for the ``trial`` begun then.

    ``trouble`` says why a router could not be read when it was tried last.
    """

    trial: float
    since: float
    versions: Mapping[str, Served]
    trouble: str = ""
