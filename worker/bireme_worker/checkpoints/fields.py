"""Typed access to the dict of a config.json, with errors that name the key."""

from collections.abc import Mapping
from typing import Any

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint


class Fields:
    """Reads one dict; null counts as missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number.

        Raises:
            UnsupportedCheckpoint: it is missing or something else.
        """
        value = self._config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UnsupportedCheckpoint(f"config.json: {key} must be a positive number, it is {value!r}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.number(key, default)
        if not isinstance(value, int):
            raise UnsupportedCheckpoint(f"config.json: {key} must be a whole number, it is {value!r}")
        return value

    def optional(self, key: str, default: float | None = None) -> float:
        """A positive number, or 0 where it is null or missing (and has no default)."""
        given = self._config.get(key, default)
        return 0.0 if given is None else float(self.number(key, default))

    def one_of(self, key: str, supported: tuple[str, ...], default: str | None = None) -> str:
        """One of the ``supported`` words."""
        value = self._config.get(key, default)
        if value not in supported:
            raise UnsupportedCheckpoint(f"config.json: {key} {value!r} is not supported, only {', '.join(supported)}")
        return str(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of ``count`` numbers."""
        value = self._config.get(key)
        if not isinstance(value, list) or len(value) != count or not all(type(one) in {int, float} for one in value):
            raise UnsupportedCheckpoint(f"config.json: {key} must be a list of {count} numbers, it is {value!r:.60}")
        return tuple(float(one) for one in value)
