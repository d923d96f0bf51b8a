"""The operator's Prometheus metrics: how much work there is, how long it takes, and how the groups fare.

Every series that can be known beforehand exists from the start, so that a rate over it is never empty.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bireme.api.status import GroupStatus, GroupTimings
from bireme.names import GroupState, Metric
from bireme_operator.kube.errors import KubeError
from bireme_operator.shell.store import Key

_VISIT_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_S: Final = (0.5, 1.0, 2.0, 4.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_DETECTION_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 60.0)
_DONE: Final = "done"
_RETRIED: Final = "retried"
_FAILED: Final = "failed"
_LOST: Final = (GroupState.RECOVERING, GroupState.BACKING_OFF)


class OperatorMetrics:
    """``leading`` and ``queued`` are asked at each scrape."""

    def __init__(self, leading: Callable[[], bool], queued: Callable[[], int]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._reconciles = Counter(*_named(Metric.OPERATOR_RECONCILES), ["result"], registry=registry)
        for result in (_DONE, _RETRIED, _FAILED):
            self._reconciles.labels(result)
        self._seconds = Histogram(*_named(Metric.OPERATOR_RECONCILE_SECONDS), buckets=_VISIT_S, registry=registry)
        self._working = Gauge(*_named(Metric.OPERATOR_WORKING), registry=registry)
        self._writes = Counter(*_named(Metric.OPERATOR_WRITES), ["verb", "resource"], registry=registry)
        self._errors = Counter(*_named(Metric.OPERATOR_ERRORS), ["error"], registry=registry)
        self._recoveries = Counter(*_named(Metric.OPERATOR_RECOVERIES), ["reason"], registry=registry)
        self._recovery_seconds = Histogram(
            *_named(Metric.OPERATOR_RECOVERY_SECONDS), ["reason"], buckets=_RECOVERY_S, registry=registry
        )
        self._detection_seconds = Histogram(
            *_named(Metric.OPERATOR_DETECTION_SECONDS), ["reason"], buckets=_DETECTION_S, registry=registry
        )
        self._states: dict[Key, Tally[str]] = {}
        self._lost: dict[Key, dict[int, str]] = {}
        registry.register(_Gauges(leading, queued, self._states))

    @contextmanager
    def reconcile(self) -> Iterator[None]:
        """Measure one visit to a deployment."""
        began, result = time.perf_counter(), _FAILED
        self._working.inc()
        try:
            yield
            result = _DONE
        except KubeError:
            result = _RETRIED
            raise
        finally:
            self._working.dec()
            self._seconds.observe(time.perf_counter() - began)
            self._reconciles.labels(result).inc()

    def wrote(self, verb: str, resource: str) -> None:
        """A write is sent to the API server."""
        self._writes.labels(verb, resource).inc()

    def erred(self, error: KubeError) -> None:
        """The API server did not grant a request."""
        self._errors.labels(type(error).__name__).inc()

    def judged(self, key: Key, groups: Iterable[GroupStatus]) -> None:
        """Take what a visit has said of a deployment's groups."""
        groups = list(groups)
        self._states[key] = Tally(group.state for group in groups)
        lost = self._lost.get(key, {})
        self._lost[key] = {group.index: lost.get(group.index, group.reason) for group in groups if group.state in _LOST}
        for group in groups:
            if group.index in lost and group.state is GroupState.SERVING:
                self._recovered(lost[group.index], group.timings)

    def forget(self, key: Key) -> None:
        """A deployment is not looked after any more."""
        self._states.pop(key, None)
        self._lost.pop(key, None)

    def page(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)

    def _recovered(self, reason: str, took: GroupTimings) -> None:
        self._recoveries.labels(reason).inc()
        self._recovery_seconds.labels(reason).observe((took.total_milliseconds or 0) / 1000)
        if took.detect_milliseconds is not None:
            self._detection_seconds.labels(reason).observe(took.detect_milliseconds / 1000)


class _Gauges(Collector):
    def __init__(self, leading: Callable[[], bool], queued: Callable[[], int], states: dict[Key, Tally[str]]) -> None:
        self._leading = leading
        self._queued = queued
        self._states = states

    def collect(self) -> Iterable[GaugeMetricFamily]:
        groups = GaugeMetricFamily(*_named(Metric.OPERATOR_GROUPS), labels=["state"])
        count = sum(self._states.values(), Tally[str]())
        for state in GroupState:
            groups.add_metric([state], count[state])
        return [
            GaugeMetricFamily(*_named(Metric.OPERATOR_LEADING), value=int(self._leading())),
            GaugeMetricFamily(*_named(Metric.OPERATOR_QUEUED), value=self._queued()),
            groups,
        ]


def _named(metric: Metric) -> tuple[str, str]:
    return str(metric), metric.about.split(": ", 1)[-1]
