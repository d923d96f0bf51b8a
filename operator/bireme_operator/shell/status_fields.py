"""The fields of status that the cluster's CRD lacks, when it is older than the operator: they are left out and named.

An operator that could write no status could not act, for what it must not forget stands there.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from bireme.names import ConditionType
from bireme_operator.kube.errors import KubeError

log = logging.getLogger(__name__)

_UNDECLARED: Final = re.compile(r"\.status((?:\.[A-Za-z]+|\[[^\]]*\])+): field not declared in schema")
_INDEX: Final = re.compile(r"\[[^\]]*\]")
MEMORY: Final = ("memory",)
"""The one field without which nothing can be done."""


class StatusFields:
    """Learns from the server's refusals which fields it does not know."""

    def __init__(self) -> None:
        self._lacking: set[tuple[str, ...]] = set()

    @property
    def lacking(self) -> str:
        """The fields that are left out, in words; nothing where the CRD has all of them."""
        return ", ".join(sorted(f"status.{'.'.join(path)}" for path in self._lacking))

    def forget(self) -> None:
        """Try all of them again: the CRD may have been replaced."""
        self._lacking.clear()

    def learn(self, error: KubeError) -> bool:
        """Take note of a refusal; whether it names a field that can be left out and was not known to be."""
        named = {tuple(_INDEX.sub("", path).split(".")[1:]) for path in _UNDECLARED.findall(str(error))}
        new = named - self._lacking
        if not new or MEMORY in new:
            return False
        self._lacking |= new
        log.warning("the CRD is older than this operator and has no %s: kubectl apply -f crds/", self.lacking)
        return True

    def known(self, status: dict[str, Any]) -> dict[str, Any]:
        """Return a status without what the server does not know; condition Ready says that something is missing."""
        if not self._lacking:
            return status
        for path in self._lacking:
            status = _without(status, path)
        words = f"the CRD is older than the operator and lacks {self.lacking}: apply the one of this release"
        told = [_told(one, words) if one["type"] == ConditionType.READY else one for one in status["conditions"]]
        return {**status, "conditions": told}


def _told(condition: dict[str, Any], words: str) -> dict[str, Any]:
    return {**condition, "message": "; ".join(filter(None, (condition.get("message"), words)))[:1024]}


def _without(value: Any, path: Sequence[str]) -> Any:
    """Return a copy without the field at ``path``, in every entry of a list on the way."""
    if isinstance(value, list | tuple):
        return [_without(one, path) for one in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: one for key, one in value.items() if key != path[0]}
    return {**value, path[0]: _without(value[path[0]], path[1:])}
