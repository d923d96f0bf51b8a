"""Whether the native scheduler is relied on: found out by what becomes of groups, remembered until it is asked anew."""

from collections.abc import Iterable
from dataclasses import dataclass

from bireme.api import InferenceDeployment
from bireme_operator.plan.memory import Gangless, Memory
from bireme_operator.plan.observed import PodView
from bireme_operator.plan.providers import HEEDED_S, Gang, gang_key, gang_of
from bireme_operator.shell.pod_groups import PodGroups


@dataclass
class Gangs:
    """Those of one deployment. ``missing`` has what the server lacks, if that came out since the last look."""

    pod_groups: PodGroups
    missing: str = ""
    _native: bool = False
    _swept: frozenset[tuple[int, int]] = frozenset()

    async def look(
        self, asked: InferenceDeployment, memory: Memory, views: Iterable[PodView], now: float
    ) -> Gangless | None:
        """Return why there are no native gangs, if they are asked for and there are none."""
        missing, self.missing = self.missing, ""
        self._native = gang_of(asked.spec.placement) is Gang.NATIVE
        if not self._native:
            return None
        if memory.gangless is not None and memory.gangless.key == gang_key(asked):
            return memory.gangless
        why = missing or await self.pod_groups.ignored(_half_placed(memory, views, now))
        return Gangless(gang_key(asked), why) if why else None

    async def sweep(self, views: Iterable[PodView]) -> None:
        """Delete the PodGroups of groups that are gone."""
        makings = frozenset((pod.group, pod.incarnation) for pod in views) if self._native else self._swept
        if makings != self._swept:
            await self.pod_groups.sweep(makings)
            self._swept = makings


def _half_placed(memory: Memory, views: Iterable[PodView], now: float) -> set[tuple[int, int]]:
    """Group and incarnation of stages that hold devices while others of their groups have been refused for a while."""
    since = {index: group.halfway_since for index, group in memory.groups.items()}
    late = {index for index, begun in since.items() if begun is not None and now - begun >= HEEDED_S}
    return {(view.group, view.incarnation) for view in views if view.group in late and view.node}
