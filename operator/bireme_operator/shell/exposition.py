"""What a router's metrics page says of each version that it sent requests to, as the planner's figures; pure.

The page is the router's public one: everybody can see what a canary was judged by.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from bireme.names import Metric
from bireme.wire.routes import version
from bireme_operator.plan.figures import Served, Times


@dataclass
class _Histogram:
    upto: dict[float, float] = field(default_factory=dict)
    total_s: float = 0.0

    def times(self) -> Times:
        bounds = sorted(self.upto)
        counts = [(bounds[0], round(self.upto[bounds[0]]))] if bounds else []
        counts += [(high, round(self.upto[high] - self.upto[low])) for low, high in pairwise(bounds)]
        return Times(tuple(counts), self.total_s)


@dataclass
class _Version:
    outcomes: dict[str, float] = field(default_factory=dict)
    first_token: _Histogram = field(default_factory=_Histogram)
    gap: _Histogram = field(default_factory=_Histogram)

    def served(self) -> Served:
        finished, failed = (round(self.outcomes.get(outcome, 0.0)) for outcome in ("ok", "error"))
        return Served(finished, failed, self.first_token.times(), self.gap.times())


def read_page(page: str) -> dict[str, Served]:
    """Return what was counted by version.

    Raises:
        ValueError: this is no metrics page.
    """
    versions: defaultdict[str, _Version] = defaultdict(_Version)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if "model_revision" in sample.labels:
                labels = sample.labels
                of = versions[version(labels.get("revision", ""), labels["model_revision"])]
                _take(of, sample.name, labels, sample.value)
    return {name: counted.served() for name, counted in versions.items()}


def _take(of: _Version, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == Metric.ROUTER_ATTEMPTS:
        of.outcomes[labels["outcome"]] = value
    for metric, histogram in ((Metric.ROUTER_FIRST_TOKEN, of.first_token), (Metric.ROUTER_TOKEN_GAP, of.gap)):
        if name == f"{metric}_bucket":
            histogram.upto[float(labels["le"])] = value
        elif name == f"{metric}_sum":
            histogram.total_s = value


class Tally:
    """What several routers counted since each of them was first read, by version."""

    def __init__(self) -> None:
        self._last: dict[str, Mapping[str, Served]] = {}
        self.versions: dict[str, Served] = {}

    def take(self, router: str, now: Mapping[str, Served]) -> None:
        """Add what came since the last page of this run of a router; one that counts less has begun anew."""
        before = self._last.get(router)
        self._last[router] = now
        if before is None or any(now.get(name, Served()).requests < old.requests for name, old in before.items()):
            return
        for name, served in now.items():
            self.versions[name] = self.versions.get(name, Served()) + (served - before.get(name, Served()))
