"""The router's Prometheus metrics; every series exists from the start, so that a rate over it is never empty."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bireme.names import Admission, Metric
from bireme_router.groups import Groups
from bireme_router.policies.eligible import why_not_ready
from bireme_router.room import WaitingRoom

_OTHER_CODES: Final = (200, 405, 409, 422, 500)


class RouterMetrics:
    """Counters; gauges are read from groups and room at each scrape."""

    def __init__(self, groups: Groups, room: WaitingRoom) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(*_named(Metric.ROUTER_REQUESTS), ["code"], registry=self._registry)
        self.resends = Counter(*_named(Metric.ROUTER_RESENDS), registry=self._registry)
        self.resumes = Counter(*_named(Metric.ROUTER_RESUMES), registry=self._registry)
        self.disconnects = Counter(*_named(Metric.ROUTER_DISCONNECTS), registry=self._registry)
        for code in sorted({*_OTHER_CODES, *map(int, Admission)}):
            self._requests.labels(str(code))
        self._registry.register(_Gauges(groups, room))

    def answered(self, code: int) -> None:
        """A client got its answer; a stream that ended with an error event counts under the error's code."""
        self._requests.labels(str(code)).inc()

    def page(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, groups: Groups, room: WaitingRoom) -> None:
        self._groups = groups
        self._room = room

    def collect(self) -> Iterable[GaugeMetricFamily]:
        waiting = GaugeMetricFamily(*_named(Metric.ROUTER_WAITING))
        waiting.add_metric([], self._room.waiting)
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
        return [waiting, in_flight, outstanding, ready]


def _named(metric: Metric) -> tuple[str, str]:
    return str(metric), metric.about.split(": ", 1)[-1]
