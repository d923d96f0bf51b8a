"""Adds up what several processes of one router say of themselves. Pure.

Counters, histograms and gauges are sums over processes; whether a group is used is one answer, not a sum.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from bireme.names import Metric

_SUMMED: Final = ("open", "waiting")
_SUMMED_OF_GROUPS: Final = ("in_flight", "outstanding_tokens")


class _Sample(msgspec.Struct, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class _Family(msgspec.Struct, array_like=True):
    name: str
    about: str
    kind: str
    samples: list[_Sample]


_families = msgspec.msgpack.Decoder(list[_Family])


def pack_metrics(registry: CollectorRegistry) -> bytes:
    """Everything in a registry, for another process."""
    families = [
        _Family(one.name, one.documentation, one.type, [_Sample(s.name, s.labels, s.value) for s in one.samples])
        for one in registry.collect()
    ]
    return msgspec.msgpack.encode(families)


def exposition(registry: CollectorRegistry, others: Sequence[bytes]) -> bytes:
    """The Prometheus text of this process and the others together."""
    if not others:
        return generate_latest(registry)
    merged = CollectorRegistry()
    merged.register(_Sums([_families.decode(part) for part in (pack_metrics(registry), *others)]))
    return generate_latest(merged)


class _Sums(Collector):
    def __init__(self, parts: Iterable[list[_Family]]) -> None:
        self._heads: dict[str, _Family] = {}
        self._values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for families in parts:
            for family in families:
                self._add(family)

    def collect(self) -> Iterator[Family]:
        for name, head in self._heads.items():
            made = Family(name, head.about, head.kind)
            for (sample, labels), value in self._values[name].items():
                made.add_sample(sample, dict(labels), value)
            yield made

    def describe(self) -> list[Family]:
        return []

    def _add(self, family: _Family) -> None:
        self._heads.setdefault(family.name, family)
        values = self._values.setdefault(family.name, {})
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.items())
            before = values.get(key)
            if before is None:
                values[key] = sample.value
            elif family.name == Metric.ROUTER_GROUP_READY:
                values[key] = max(before, sample.value)
            else:
                values[key] = before + sample.value


def merge_routes(own: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of `/admin/routes` of this process, with the work of the others added."""
    merged = {**own, "processes": 1 + len(others)}
    for other in others:
        for name in _SUMMED:
            merged[name] += other[name]
        merged["traffic"] = _sum(merged["traffic"], other["traffic"])
        by_pod = {group["pod"]: group for group in other["groups"]}
        merged["groups"] = [_with(group, by_pod.get(group["pod"])) for group in merged["groups"]]
    return merged


def _with(group: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    if other is None:
        return group
    return {**group, **{name: group[name] + other[name] for name in _SUMMED_OF_GROUPS}}


def _sum(left: Any, right: Any) -> Any:
    """Numbers are added, and so is every number inside; the bounds of a histogram stay."""
    if isinstance(left, dict):
        return {name: value if name == "bounds" else _sum(value, right[name]) for name, value in left.items()}
    if isinstance(left, list):
        return [_sum(one, other) for one, other in zip(left, right, strict=True)]
    return left + right
