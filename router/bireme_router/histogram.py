"""Histograms at the cost of a bisection per value: prometheus_client's take a lock and a label look-up per token."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily

FIRST_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
GAP_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
QUEUE_S: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Values by upper bounds, in seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def buckets(self) -> tuple[Sequence[float], list[int]]:
        """Upper bounds, and how many values fell below each and above the last."""
        return self._bounds, list(self._counts)

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Write it into the exposition."""
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        family.add_metric(list(labels), list(zip(names, accumulate(self._counts), strict=True)), self._sum)


def family(
    named: tuple[str, str], labels: Sequence[str], series: Iterable[tuple[Sequence[str], Histogram]]
) -> HistogramMetricFamily:
    """One family, a histogram for each of the values of ``labels``."""
    made = HistogramMetricFamily(*named, labels=labels)
    for values, histogram in series:
        histogram.add_to(made, values)
    return made
