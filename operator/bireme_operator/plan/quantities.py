"""Kubernetes' resource quantities as whole thousandths, so that they can be added and compared exactly."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Final

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
_SHAPE: Final = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")

Amounts = Mapping[str, int]
"""Thousandths of each resource."""


def thousandths(quantity: object) -> int:
    """Return a quantity in thousandths, rounded up; what can't be read counts as nothing."""
    return _thousandths(str(quantity))


@lru_cache(maxsize=1024)
def _thousandths(quantity: str) -> int:
    """A cluster has many pods and few quantities."""
    shape = _SHAPE.fullmatch(quantity.strip())
    if shape is None or shape[2] not in _SUFFIXES:
        return 0
    scaled = Decimal(shape[1]) * _SUFFIXES[shape[2]] * 1000
    return int(scaled.to_integral_value(rounding="ROUND_CEILING"))


def amounts(quantities: Mapping[str, object]) -> dict[str, int]:
    """Return a resource list in thousandths."""
    return {name: thousandths(value) for name, value in quantities.items()}


def total(lists: Iterable[Amounts]) -> dict[str, int]:
    """Add resource lists."""
    result: dict[str, int] = {}
    for one in lists:
        for name, value in one.items():
            result[name] = result.get(name, 0) + value
    return result


def written(quantities: Amounts) -> str:
    """Write amounts for people."""
    return ", ".join(f"{name} {Decimal(value) / 1000:f}" for name, value in sorted(quantities.items()))
