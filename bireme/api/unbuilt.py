"""The fields whose behaviour does not exist yet: the one table that refuses them, in pydantic and in the CRD alike.

A field here must keep its default; nothing is accepted and ignored. To build one: delete its line, run `make crds`.
Each line says which part of the work brings the behaviour and what to do until then.
"""

from enum import StrEnum
from typing import Final


class Plan(StrEnum):
    """The part of the work that will bring a field's behaviour."""

    DOWNLOAD = "checkpoint download"


UNBUILT: Final[dict[str, tuple[Plan, str]]] = {
    "spec.model.source.hub": (Plan.DOWNLOAD, "download the checkpoint first and set source.path"),
    "spec.model.source.objectStore": (Plan.DOWNLOAD, "download the checkpoint first and set source.path"),
}


def fields_of(parent: str) -> list[str]:
    """Return the names of the unbuilt fields right under the path ``parent``, in the table's order."""
    return [path.rpartition(".")[2] for path in UNBUILT if path.rpartition(".")[0] == parent]


def message(path: str, default: object) -> str:
    """Return the instruction for somebody who has set the field at ``path``."""
    plan, until_then = UNBUILT[path]
    keep = f"keep its default {default}" if isinstance(default, int | str) else "leave it out"
    return f"not built yet, planned with {plan}: {keep}; until then {until_then}"
