"""Merges an open template over a rendered object, as `kubectl patch` would: by name where entries have names.

Maps are merged key by key, lists by the field that identifies their entries; other lists are replaced. The template
wins, except for what `pods` puts back because a stage can't work without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
}
_APPENDED: Final = ("tolerations", "schedulingGates", "requiredDuringSchedulingIgnoredDuringExecution")
"""What the template asks besides. The last is a list for pods only: a stage always keeps away from its predecessor."""
_UNIONS: Final = ("env", "volumes")
"""Entries that have one source of several: to give another source is to take the first one away."""


def entries(value: object) -> list[Mapping[str, Any]]:
    """Return the entries of a list in a template; what has another shape is the API server's to refuse."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def keys(value: object) -> list[str]:
    """Return the keys of a map in a template, none of what is no map."""
    return [str(key) for key in value] if isinstance(value, Mapping) else []


def merge(base: Any, over: Any, field: str = "") -> Any:
    """Return ``base`` with ``over`` merged into it; ``field`` is the name of the field that holds both."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: merge(base[key], value, key) if key in base else value for key, value in over.items()}}
    if isinstance(base, list) and isinstance(over, list):
        return _merge_lists(base, over, field)
    return over


def _merge_lists(base: list[Any], over: list[Any], field: str) -> list[Any]:
    if field in _APPENDED:
        return [*base, *(entry for entry in over if entry not in base)]
    key = _KEYS.get(field)
    if key is None or not all(isinstance(entry, Mapping) and isinstance(entry.get(key), str | int) for entry in over):
        return over
    return _by_key(base, over, key, union=field in _UNIONS)


def _by_key(
    base: Sequence[Mapping[str, Any]], over: Sequence[Mapping[str, Any]], key: str, *, union: bool
) -> list[Any]:
    changes = {entry[key]: entry for entry in over}
    known = {entry[key] for entry in base}
    merged = [_changed(entry, changes[entry[key]], key, union) if entry[key] in changes else entry for entry in base]
    return [*merged, *(entry for entry in over if entry[key] not in known)]


def _changed(entry: Mapping[str, Any], change: Mapping[str, Any], key: str, union: bool) -> Any:
    another = union and not (set(entry) & set(change) - {key})
    return change if another else merge(entry, change)
