"""Events on the object, for `kubectl describe`: transitions only, and one where many groups do the same at once."""

import asyncio
import itertools
import logging
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bireme.names import Event
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import KubeError
from bireme_operator.kube.resources import DEPLOYMENTS, EVENTS
from bireme_operator.plan.news import News
from bireme_operator.render.owned import Owner
from bireme_operator.shell.errands import Errands

log = logging.getLogger(__name__)

_WARNINGS: Final = frozenset(
    {
        Event.CANARY_FAILED,
        Event.GROUP_FAILED,
        Event.GROUP_LOST_PART,
        Event.GROUP_RELOAD_FAILED,
        Event.NATIVE_GANG_IGNORED,
    }
)
_SINGLY: Final = 5
_TOGETHER_S: Final = 1.0
_ERRAND: Final = "events"
_LONGEST: Final = 1000


@dataclass
class Recorder:
    """Posts events of one deployment. An event that can't be posted is only logged: nothing depends on it."""

    kube: Kube
    owner: Owner
    identity: str
    errands: Errands
    _waiting: list[News] = field(default_factory=list)

    def post(self, news: Sequence[News]) -> None:
        """Begin to post what is new, after what waits from before."""
        self._waiting += news
        if self._waiting and _ERRAND not in self.errands:
            self.errands.begin(_ERRAND, self._post())

    async def _post(self) -> None:
        """Post what there is at once, and what comes meanwhile together after a second."""
        while self._waiting:
            by_event: defaultdict[Event, list[News]] = defaultdict(list)
            for one in self._waiting:
                by_event[one.event].append(one)
            self._waiting.clear()
            for event, told in by_event.items():
                for note in _notes(told):
                    log.info("%s/%s: %s: %s", self.owner.namespace, self.owner.name, event, note)
                    await self._create(event, note)
            await asyncio.sleep(_TOGETHER_S)

    async def _create(self, event: Event, note: str) -> None:
        try:
            await self.kube.create(self._manifest(event, note))
        except KubeError as error:
            log.warning("event %s could not be posted: %s", event, error)

    def _manifest(self, event: Event, note: str) -> dict[str, Any]:
        owner = self.owner
        regarding = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": owner.name}
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{owner.name}.{secrets.token_hex(8)}", "namespace": owner.namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "bireme.dev/operator",
            "reportingInstance": self.identity[:128],
            "action": "Reconcile",
            "reason": str(event),
            "type": "Warning" if event in _WARNINGS else "Normal",
            "regarding": regarding | {"namespace": owner.namespace, "uid": owner.uid},
            "note": note[:_LONGEST],
        }


def _notes(told: Sequence[News]) -> list[str]:
    if len(told) <= _SINGLY:
        return [one.message if one.group is None else f"group {one.group}: {one.message}" for one in told]
    listed = ", ".join(str(one.group) for one in itertools.islice(told, 20))
    more = ", …" if len(told) > 20 else ""
    return [f"{len(told)} groups ({listed}{more}); group {told[0].group}: {told[0].message}"]
