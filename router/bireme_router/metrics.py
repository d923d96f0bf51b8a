"""The router's Prometheus metrics; every series exists from the start, so that a rate over it is never empty."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from bireme.names import Admission, Metric
from bireme_router.groups import Groups
from bireme_router.histogram import QUEUE_S, Histogram, family
from bireme_router.merge import exposition, pack_metrics
from bireme_router.policies.eligible import why_not_ready
from bireme_router.policies.priority import Priority
from bireme_router.revisions import Revision, Verdict
from bireme_router.room import WaitingRoom

_OTHER_CODES: Final = (200, 405, 409, 422, 500)
_VERSION: Final = ("revision", "model_revision")


class RouterMetrics:
    """Counters; gauges are read from groups and room at each scrape."""

    def __init__(self, groups: Groups, room: WaitingRoom) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(*_named(Metric.ROUTER_REQUESTS), ["code"], registry=self._registry)
        self.resends = Counter(*_named(Metric.ROUTER_RESENDS), registry=self._registry)
        self.resumes = Counter(*_named(Metric.ROUTER_RESUMES), registry=self._registry)
        self.disconnects = Counter(*_named(Metric.ROUTER_DISCONNECTS), registry=self._registry)
        self._hedges = Counter(*_named(Metric.ROUTER_HEDGES), ["winner"], registry=self._registry)
        for winner in ("first", "second"):
            self._hedges.labels(winner)
        self.queued = {priority: Histogram(QUEUE_S) for priority in Priority}
        self._revisions: dict[str, Revision] = {}
        for code in sorted({*_OTHER_CODES, *map(int, Admission)}):
            self._requests.labels(str(code))
        self._room = room
        self._registry.register(_Gauges(groups, room))
        self._registry.register(_Served(groups, self.queued, self._revisions))

    def answered(self, code: int) -> None:
        """A client got its answer; a stream that ended with an error event counts under the error's code."""
        self._requests.labels(str(code)).inc()

    def hedged(self, winner: str) -> None:
        """A request was on two groups; the first or the second of them answered it."""
        self._hedges.labels(winner).inc()

    def revision(self, version: str) -> Revision:
        """The series of one version, see `bireme.wire.routes`."""
        revision = self._revisions.get(version)
        if revision is None:
            revision = self._revisions[version] = Revision()
        return revision

    @property
    def waiting(self) -> int:
        """Requests that wait for a group now."""
        return self._room.waiting

    @property
    def revisions(self) -> Mapping[str, Revision]:
        """All of them so far."""
        return self._revisions

    def page(self, others: Sequence[bytes] = ()) -> bytes:
        """The exposition text; ``others``: the ``part`` of each sibling process."""
        return exposition(self._registry, others)

    def part(self) -> bytes:
        """Everything of this process, for a sibling."""
        return pack_metrics(self._registry)


class _Gauges(Collector):
    def __init__(self, groups: Groups, room: WaitingRoom) -> None:
        self._groups = groups
        self._room = room

    def collect(self) -> Iterable[GaugeMetricFamily]:
        waiting = GaugeMetricFamily(*_named(Metric.ROUTER_WAITING))
        waiting.add_metric([], self._room.waiting)
        by_class = GaugeMetricFamily(*_named(Metric.ROUTER_WAITING_CLASS), labels=["priority"])
        for priority in Priority:
            by_class.add_metric([priority.name.lower()], self._room.waiting_of(priority))
        in_flight = GaugeMetricFamily(*_named(Metric.ROUTER_IN_FLIGHT), labels=["group"])
        outstanding = GaugeMetricFamily(*_named(Metric.ROUTER_OUTSTANDING), labels=["group"])
        ready = GaugeMetricFamily(*_named(Metric.ROUTER_GROUP_READY), labels=["group"])
        groups = self._groups.all()
        sums = {group.label: (0, 0) for group in groups} | self._groups.accounts.by_label()
        for label, (requests, tokens) in sums.items():
            in_flight.add_metric([label], requests)
            outstanding.add_metric([label], tokens)
        for group in groups:
            ready.add_metric([group.label], 0 if why_not_ready(self._groups.standing(group)) else 1)
        return [waiting, by_class, in_flight, outstanding, ready]


class _Served(Collector):
    """How requests were served: by class, by version, and how well prefixes were predicted."""

    def __init__(self, groups: Groups, queued: dict[Priority, Histogram], revisions: dict[str, Revision]) -> None:
        self._affinity = groups.affinity
        self._queued = queued
        self._revisions = revisions

    def collect(self) -> Iterable[Family]:
        predicted = CounterMetricFamily(*_named(Metric.ROUTER_PREDICTED_CACHED), value=self._affinity.predicted)
        reported = CounterMetricFamily(*_named(Metric.ROUTER_REPORTED_CACHED), value=self._affinity.reported)
        attempts = CounterMetricFamily(*_named(Metric.ROUTER_ATTEMPTS), labels=[*_VERSION, "outcome"])
        series = {version.partition("/")[::2]: revision for version, revision in self._revisions.items()}
        for labels, revision in series.items():
            for verdict in Verdict:
                attempts.add_metric([*labels, verdict], revision.attempts[verdict])
        queued = {(priority.name.lower(),): histogram for priority, histogram in self._queued.items()}
        first = {labels: revision.first_token for labels, revision in series.items()}
        gaps = {labels: revision.gap for labels, revision in series.items()}
        return [
            predicted,
            reported,
            attempts,
            family(_named(Metric.ROUTER_QUEUE_SECONDS), ["priority"], queued.items()),
            family(_named(Metric.ROUTER_FIRST_TOKEN), _VERSION, first.items()),
            family(_named(Metric.ROUTER_TOKEN_GAP), _VERSION, gaps.items()),
        ]


def _named(metric: Metric) -> tuple[str, str]:
    return str(metric), metric.about.split(": ", 1)[-1]
