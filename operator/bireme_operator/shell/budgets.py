"""Keeps one disruption budget for each group that has served, until its pods are gone."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import AlreadyExists, Conflict, NotFound
from bireme_operator.kube.resources import BUDGETS
from bireme_operator.plan.places import selects
from bireme_operator.render.budgets import (
    budget_name,
    group_of,
    is_budget_of,
    pod_labels,
    render_budget,
    spared_by,
)
from bireme_operator.render.owned import Object, Owner
from bireme_operator.shell.belongings import controller_of, may_take
from bireme_operator.shell.errands import Errands

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
_ERRAND: Final = "budgets"


@dataclass
class Budgets:
    """The budgets of one deployment, by group: uid and size as known."""

    kube: Kube
    owner: Owner
    errands: Errands
    conflicts: Mapping[int, str] = field(default_factory=dict)
    """Somebody else's budget that chooses a group's pods too, by group: the Eviction API then refuses to judge."""
    _known: dict[int, tuple[str, int]] = field(default_factory=dict)
    _others: list[Mapping[str, Any]] = field(default_factory=list)
    _taken: set[int] = field(default_factory=set)

    async def look(self) -> None:
        """Read live which there are."""
        await self.errands.finish(_ERRAND)
        self._taken.clear()
        found = await self.kube.list(BUDGETS, self.owner.namespace)
        ours = [one for one in found["items"] if self._is_ours(one)]
        self._known = {
            group: (one["metadata"]["uid"], spared_by(self.owner, group, one))
            for one in ours
            if (group := group_of(self.owner, one)) is not None
        }
        self._others = [one for one in found["items"] if one not in ours]

    def _is_ours(self, budget: Mapping[str, Any]) -> bool:
        return controller_of(budget) == self.owner.uid or is_budget_of(self.owner, budget)

    def keep(self, groups: Mapping[int, int], labels: Mapping[str, str]) -> None:
        """Begin to make those that are missing, and to delete those whose group is gone.

        ``groups`` has sizes, 0 without a budget; ``labels`` are those that the template gives the pods.
        """
        self.conflicts = {
            index: name for index, stages in groups.items() if stages and (name := self._conflict(index, labels))
        }
        if _ERRAND in self.errands:
            return  # its end asks for another visit
        changes = [
            self._make(index, stages)
            for index, stages in sorted(groups.items())
            if stages and index not in self._taken and self._known.get(index, ("", 0))[1] != stages
        ]
        changes += [self._delete(index) for index in self._known.keys() - groups.keys()]
        if changes:
            self.errands.begin(_ERRAND, _side_by_side(changes))

    def _conflict(self, group: int, labels: Mapping[str, str]) -> str:
        pods = pod_labels(self.owner, group, labels) if self._others else ()
        chosen = (one for one in self._others if any(selects(one["spec"].get("selector"), pod) for pod in pods))
        return next((str(one["metadata"]["name"]) for one in chosen), "")

    async def _make(self, index: int, stages: int) -> None:
        budget = render_budget(self.owner, index, stages)
        if self._known.get(index, ("", stages))[1] == 0:
            await self._delete(index)  # what somebody has written into it can't be applied over
        try:
            made = await self._write(index, budget)
        except (AlreadyExists, Conflict):
            made = await self._take(budget)
        if made is None:
            self._taken.add(index)  # till the next look
            log.warning("PodDisruptionBudget %s is somebody else's: the group has none", budget["metadata"]["name"])
            return
        self._known[index] = made["metadata"]["uid"], stages

    async def _write(self, index: int, budget: Object) -> Object | None:
        uid, _ = self._known.get(index, ("", 0))
        return await (self.kube.apply(budget, uid=uid) if uid else self.kube.create(budget))

    async def _take(self, budget: Object) -> Object | None:
        """Write what is not as it was thought, as it is found live; nothing if that is somebody else's."""
        found = await self.kube.find(BUDGETS, self.owner.namespace, budget["metadata"]["name"])
        if found is None:
            return await self.kube.create(budget)
        if not may_take(self.owner, found, budget):
            return None
        return await self.kube.apply(budget, version=found["metadata"]["resourceVersion"])

    async def _delete(self, index: int) -> None:
        if index not in self._known:
            return
        uid, _ = self._known[index]
        with suppress(NotFound, Conflict):
            await self.kube.delete(BUDGETS, self.owner.namespace, budget_name(self.owner, index), uid=uid)
        self._known.pop(index, None)


async def _side_by_side(changes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them, a few at a time; the first that fails leaves the others for the next time."""
    left = iter(changes)

    async def work() -> None:
        for change in left:
            await change

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        for change in left:
            change.close()
