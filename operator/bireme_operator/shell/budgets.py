"""Keeps one disruption budget for each group that has served, until its pods are gone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bireme.names import Label
from bireme_operator.kube.client import Kube
from bireme_operator.kube.errors import Conflict, NotFound
from bireme_operator.kube.resources import BUDGETS
from bireme_operator.render.budgets import budget_name, render_budget
from bireme_operator.render.owned import Owner


@dataclass
class Budgets:
    """The budgets of one deployment, by group: uid and size as known."""

    kube: Kube
    owner: Owner
    _known: dict[int, tuple[str, int]] = field(default_factory=dict)

    async def look(self) -> None:
        """Read live which there are."""
        selector = f"{Label.DEPLOYMENT}={self.owner.name},{Label.GROUP_INDEX}"
        found = await self.kube.list(BUDGETS, self.owner.namespace, selector)
        self._known = {
            int(one["metadata"]["labels"][Label.GROUP_INDEX]): (one["metadata"]["uid"], one["spec"]["minAvailable"])
            for one in found["items"]
        }

    async def keep(self, groups: Mapping[int, int]) -> None:
        """Make those that are missing, delete those whose group is gone. ``groups`` has sizes, 0 without a budget."""
        for index, stages in sorted(groups.items()):
            if stages and self._known.get(index, ("", 0))[1] != stages:
                made = await self.kube.apply(render_budget(self.owner, index, stages))
                self._known[index] = made["metadata"]["uid"], stages
        for index in self._known.keys() - groups.keys():
            await self._delete(index, self._known.pop(index)[0])

    async def _delete(self, index: int, uid: str) -> None:
        try:
            await self.kube.delete(BUDGETS, self.owner.namespace, budget_name(self.owner, index), uid=uid)
        except (NotFound, Conflict):
            return
