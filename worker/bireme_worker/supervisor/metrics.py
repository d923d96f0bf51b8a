"""The Prometheus text of a stage's admin port, made from its document at the moment it is asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from bireme import names
from bireme.wire.state import StateDocument
from bireme_worker.coordinator.messages import Status

_SUFFIX = "_total"


@dataclass(frozen=True)
class Readings:
    """What the metrics show. ``restarts`` by rank; ``ended`` by reason; ``status`` None: no coordinator here or yet."""

    document: StateDocument
    status: Status | None = None
    restarts: dict[int, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)


class _Collector:
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        yield from _stage(self._readings)
        if self._readings.status is not None:
            yield from _work(self._readings.document, self._readings.status)


def exposition(readings: Readings) -> bytes:
    """The text of ``/metrics``."""
    registry = CollectorRegistry()
    registry.register(_Collector(readings))
    return generate_latest(registry)


def _stage(readings: Readings) -> Iterator[Metric]:
    document = readings.document
    own = next((stage for stage in document.stages if stage.stage == document.stage), None)
    loads = {str(rank.rank): rank.loads for rank in own.ranks} if own is not None else {}
    yield _gauge(names.Metric.EPOCH, document.epoch if document.ready else 0)
    yield _gauge(names.Metric.READY, int(document.ready))
    yield _counters(names.Metric.LOADS, "rank", loads)
    yield _counters(names.Metric.RANK_RESTARTS, "rank", {str(rank): n for rank, n in readings.restarts.items()})
    yield _counters(names.Metric.EPOCHS_ENDED, "reason", readings.ended)


def _work(document: StateDocument, status: Status) -> Iterator[Metric]:
    yield _gauge(names.Metric.REQUESTS_RUNNING, status.running)
    yield _gauge(names.Metric.REQUESTS_WAITING, status.waiting)
    yield _gauge(names.Metric.KV_USAGE, document.kv_blocks_used / document.kv_blocks if document.kv_blocks else 0.0)
    yield _counter(names.Metric.PROMPT_TOKENS, status.prompt_tokens)
    yield _counter(names.Metric.GENERATION_TOKENS, status.generation_tokens)
    yield _counter(names.Metric.CACHED_TOKENS, status.cached_tokens)
    yield _counter(names.Metric.STEPS, status.step)
    yield _counter(names.Metric.NONFINITE, status.nonfinite)
    yield _counter(names.Metric.DRAFTED, status.drafted)
    yield _counter(names.Metric.ACCEPTED, status.accepted)
    yield _counters(names.Metric.REQUESTS, "finish_reason", status.finished)


def _gauge(name: names.Metric, value: float) -> Metric:
    return GaugeMetricFamily(name, name.about, value=value)


def _counter(name: names.Metric, value: float) -> Metric:
    return CounterMetricFamily(name.removesuffix(_SUFFIX), name.about, value=value)


def _counters(name: names.Metric, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name.removesuffix(_SUFFIX), name.about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
