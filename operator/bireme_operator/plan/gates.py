"""All stages of a group are let to the scheduler together, each with its node: half a gang never holds devices.

Pods are made behind a scheduling gate. When a place for all of them is found, the gates are lifted; until then the
group waits whole. There is no transaction over pods: what was let go and found no node after all is taken back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from bireme.names import GroupState, Reason
from bireme_operator.plan.actions import LiftGate
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group, Verdict
from bireme_operator.plan.observed import SPARE, Observed, PodView
from bireme_operator.plan.places import HOSTNAME, NodeView, NoRoom, Search, find
from bireme_operator.plan.quantities import total

RETRY_S: Final = 5.0
"""Room comes without news: other pods end."""
SPARE_RETRY_S: Final = 30.0
"""A spare may wait longer: nobody waits for it."""
STUCK_S: Final = 30.0
"""A stage that was let go and has no node for so long will have none: its place was taken."""
_BLIND: Final = NoRoom(
    "the operator sees no nodes, so it can't place a whole group: run it with --all-namespaces, "
    "or set placement.scheduler to Native"
)


@dataclass(frozen=True)
class Allotment:
    """The gates to be lifted now, and the groups as they are judged with that."""

    lifts: tuple[LiftGate, ...]
    groups: tuple[Group, ...]


def allot(groups: Sequence[Group], desired: Desired, observed: Observed) -> Allotment:
    """Find a place for every group that waits, in the order of their indices."""
    ground = _Ground(groups, desired, observed, {node.name: node for node in observed.nodes or ()})
    lifts: list[LiftGate] = []
    judged: list[Group] = []
    for group in groups:
        found = ground.place(group) if group.gated else []
        if isinstance(found, NoRoom):
            state = GroupState.RECOVERING if group.memory.served else GroupState.PENDING
            judged.append(replace(group, verdict=Verdict(state, Reason.NO_CAPACITY, found.message)))
            continue
        if found:
            ground.give(group.index, found)
            lifts += found
        judged.append(group)
    lifts += ground.beside_groups([pod for pod in observed.spares if pod.gated and not pod.deleting])
    return Allotment(tuple(lifts), tuple(judged))


def is_stuck(group: Group, now: float) -> bool:
    """Whether stages of the group were let go and will find no node."""
    since = group.memory.halfway_since
    return since is not None and now - since >= STUCK_S


@dataclass
class _Ground:
    """What is left while one group after the other gets its place. ``given`` has the nodes given away in this pass."""

    groups: Sequence[Group]
    desired: Desired
    observed: Observed
    nodes: dict[str, NodeView]
    given: dict[int, set[str]] = field(default_factory=dict)

    def place(self, group: Group) -> list[LiftGate] | NoRoom:
        gated = [pod for _, pod in sorted(group.stages.items()) if pod.gated]
        if not gated or group.memory.draining or group.memory.failure or len(group.stages) < group.size:
            return []
        if self.observed.nodes is None:
            return _BLIND
        stages = group.stages.values()
        beside = [node for pod in stages if (node := self._home(pod) or self._closed(pod)) is not None]
        search = self._search(len(gated), tuple(beside), group)
        found = find(search, list(self.nodes.values()))
        if isinstance(found, NoRoom):
            return found
        return [
            LiftGate(pod.name, group.index, node, self.nodes[node].labels[HOSTNAME])
            for pod, node in zip(gated, found, strict=True)
        ]

    def give(self, index: int, lifts: Sequence[LiftGate]) -> None:
        """Take what the stages need from what is left; one pod more is one slot less."""
        less = {name: -amount for name, amount in self.observed.needs.requests.items()} | {"pods": -1000}
        for lift in lifts:
            node = self.nodes[lift.node]
            self.nodes[lift.node] = replace(node, free=total([node.free, less]))
            self.homes.setdefault(lift.node, set()).add(index)
        self.given[index] = {lift.node for lift in lifts}

    @cached_property
    def homes(self) -> dict[str, set[int]]:
        """The groups that have a stage on a node, or are let go for it, and are not to leave it."""
        found: dict[str, set[int]] = {}
        for group in self.groups:
            for pod in group.living if group.memory.draining is None else ():
                if (home := self._home(pod)) is not None:
                    found.setdefault(home.name, set()).add(group.index)
        return found

    def _search(self, count: int, beside: tuple[NodeView, ...], group: Group) -> Search:
        taken, others = self._taken(group), self._others(group.index)
        return Search(count, self.observed.needs, self.desired.topology, beside, taken, others)

    def _others(self, index: int) -> dict[str, int]:
        """How many groups beside this one there are on each node that has any."""
        return {name: number for name, groups in self.homes.items() if (number := len(groups - {index}))}

    def beside_groups(self, spares: Sequence[PodView]) -> Iterator[LiftGate]:
        """Give each spare a place in the domain of a group, first where the fewest stand by."""
        nodes = (self.nodes.get(pod.node) for pod in self.observed.spares)
        standing = [self._domain(node) for node in nodes if node is not None]
        for spare in sorted(spares, key=lambda pod: pod.incarnation):
            node = self._beside_a_group(standing)
            if node is None:
                return
            lift = LiftGate(spare.name, SPARE, node, self.nodes[node].labels[HOSTNAME])
            standing.append(self._domain(self.nodes[node]))
            self.give(SPARE, [lift])
            yield lift

    def _beside_a_group(self, standing: Sequence[tuple[str, ...]]) -> str | None:
        homes = {
            group.index: [home for pod in group.stages.values() if (home := self._home(pod))] for group in self.groups
        }
        placed = [one for one in self.groups if homes[one.index] and not one.memory.draining and not one.moving]
        placed.sort(key=lambda one: (standing.count(self._domain(homes[one.index][0])), one.index))
        for group in placed:
            beside = tuple(homes[group.index])
            # The death of one node should not take a stage and what is to replace it.
            search = replace(self._search(1, beside, group), others=self._others(SPARE))
            if not isinstance(found := find(search, list(self.nodes.values())), NoRoom):
                return found[0]
        return None

    def _domain(self, node: NodeView) -> tuple[str, ...]:
        return tuple(node.labels.get(key, "") for key in self.desired.topology.required)

    def _taken(self, group: Group) -> frozenset[str]:
        """The domains of the first required level in which another group has a stage."""
        topology = self.desired.topology
        if not topology.exclusive or not topology.required:
            return frozenset()
        others = [other for other in self.groups if other.index != group.index]
        homes = [self._home(pod) for other in others for pod in [*other.living, *other.deleting]]
        homes += [self.nodes[name] for names in self.given.values() for name in names]
        return frozenset(home.labels.get(topology.required[0], "") for home in homes if home is not None)

    def _home(self, pod: PodView) -> NodeView | None:
        if pod.node:
            return self.nodes.get(pod.node)
        if pod.gated or not pod.aim:
            return None
        return self.nodes.get(self._by_host.get(pod.aim, ""))

    def _closed(self, pod: PodView) -> NodeView | None:
        """Return a node that takes no more pods, but has this one: it is in its domains all the same."""
        labels = None if pod.node_lost or not pod.node else self.observed.labels.get(pod.node)
        return None if labels is None else NodeView(pod.node, labels, {})

    @cached_property
    def _by_host(self) -> dict[str, str]:
        return {node.labels.get(HOSTNAME, ""): name for name, node in self.nodes.items()}
