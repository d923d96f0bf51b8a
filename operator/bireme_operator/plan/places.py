"""Finds a place for a whole group at once: nodes with room, in one domain of every level of the topology that is asked.

Only what keeps a pod off a node for good is judged: room, taints, node selectors and node affinity. The scheduler still
decides; what it refuses after all is taken back by `gates`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from bireme_operator.plan.quantities import Amounts, written

HOSTNAME: Final = "kubernetes.io/hostname"
REPELLING: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class NodeView:
    """One node. ``free`` is what is left of its allocatable resources; ``taints`` as the API has them."""

    name: str
    labels: Mapping[str, str]
    free: Amounts
    taints: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def room(self) -> int:
        """All that is free, of whatever kind: a measure to rank by."""
        return sum(self.free.values())

    def slots(self, needs: "Needs") -> int:
        """Return how many pods find room, -1 where none is let on. Hundreds of groups ask for the same in a pass."""
        known: tuple[Needs, int] | None = self.__dict__.get("_slots")
        if known is None or known[0] is not needs:
            known = self.__dict__["_slots"] = (needs, _slots(self, needs) if _suits(self, needs) else -1)
        return known[1]


@dataclass(frozen=True)
class Needs:
    """What every stage of a group asks of its node."""

    requests: Amounts = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    terms: Sequence[Mapping[str, Any]] = ()
    tolerations: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Topology:
    """Node labels whose values all stages of a group share: ``required`` always, ``preferred`` where it can be had.

    ``exclusive`` leaves every domain of the first required level to one group.
    """

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    exclusive: bool = False


@dataclass(frozen=True)
class NoRoom:
    """Why there is no place, in a sentence with the numbers."""

    message: str


@dataclass(frozen=True)
class Search:
    """A place is looked for: for ``count`` more stages beside those on ``beside``. ``taken`` domains are others'.

    ``others`` says how many other groups of the deployment a node has, where it has any: its death would take them too.
    """

    count: int
    needs: Needs
    topology: Topology = field(default_factory=Topology)
    beside: tuple[NodeView, ...] = ()
    taken: frozenset[str] = frozenset()
    others: Mapping[str, int] = field(default_factory=dict)


def find(search: Search, nodes: Sequence[NodeView]) -> list[str] | NoRoom:
    """Return a node for each stage, or why there is none.

    In the smallest domain in which no node is shared with another group; if there is none, where the fewest share.
    """
    count, needs, topology = search.count, search.needs, search.topology
    fit = [node for node in nodes if node.slots(needs) >= 0 and node.labels.get(HOSTNAME)]
    if topology.exclusive and topology.required:
        fit = [node for node in fit if node.labels.get(topology.required[0]) not in search.taken]
    best: tuple[int, str] = (0, "")
    for keys in _keys(topology):
        shared: list[tuple[int, list[str]]] = []
        for name, domain in _domains(fit, keys, search):
            slots = {node.name: node.slots(needs) for node in domain}
            best = max(best, (sum(slots.values()), name))
            if sum(slots.values()) < count:
                continue
            places = _pack(count, slots, search.others)
            sharing = max(search.others.get(name, 0) for name in places)
            if not sharing:
                return places
            shared.append((sharing, places))
        if shared:
            return min(shared, key=lambda one: one[0])[1]
    where = f"one domain of {', '.join(topology.required)}" if topology.required else "the cluster"
    most = f"; the most, for {best[0]}, has {best[1]}" if best[0] and topology.required else f"; room for {best[0]}"
    asked = written(needs.requests) or "no resources"
    return NoRoom(f"no room in {where} for {count} more stages of {asked} each{most} ({len(fit)} nodes suit)")


def _keys(topology: Topology) -> Iterator[tuple[str, ...]]:
    """All levels first, then without the narrowest of those that are only preferred."""
    for dropped in range(len(topology.preferred) + 1):
        yield (*topology.required, *topology.preferred[dropped:])


def _domains(nodes: Sequence[NodeView], keys: Sequence[str], search: Search) -> list[tuple[str, list[NodeView]]]:
    """The domains that may hold the group, the smallest first: a large one may be needed by a larger group.

    Of those that are equal, the one with the fewest other groups first.
    """
    domains: dict[tuple[str, ...], list[NodeView]] = {}
    for node in nodes:
        if all(key in node.labels for key in keys):
            domains.setdefault(tuple(node.labels[key] for key in keys), []).append(node)
    home = {tuple(node.labels.get(key, "") for key in keys) for node in search.beside}
    possible = [(values, found) for values, found in domains.items() if not home or home == {values}]

    def rank(one: tuple[tuple[str, ...], list[NodeView]]) -> tuple[int, int, tuple[str, ...]]:
        values, found = one
        return sum(node.room for node in found), sum(search.others.get(node.name, 0) for node in found), values

    ranked = sorted(possible, key=rank)
    return [("/".join(values), found) for values, found in ranked]


def _slots(node: NodeView, needs: Needs) -> int:
    rooms = [node.free.get(name, 0) // amount for name, amount in needs.requests.items() if amount > 0]
    return max(min([*rooms, node.free.get("pods", 0) // 1000]), 0)


def _pack(count: int, slots: Mapping[str, int], others: Mapping[str, int]) -> list[str]:
    """Fill as few nodes as can be; of those choices take the one whose nodes have the fewest other groups."""
    closest = _fill(count, slots)
    for most in sorted({others.get(name, 0) for name in slots}):
        places = _fill(count, {name: free for name, free in slots.items() if others.get(name, 0) <= most})
        if len(places) == count and len(set(places)) == len(set(closest)):
            return places
    return closest


def _fill(count: int, slots: Mapping[str, int]) -> list[str]:
    ranked = sorted(slots, key=lambda name: (-slots[name], name))
    return list(islice((name for name in ranked for _ in range(slots[name])), count))


def _suits(node: NodeView, needs: Needs) -> bool:
    tolerated = all(tolerates(taint, needs.tolerations) for taint in node.taints if taint["effect"] in REPELLING)
    chosen = all(node.labels.get(key) == value for key, value in needs.selector.items())
    return tolerated and chosen and (not needs.terms or any(_meets(node, term) for term in needs.terms))


def tolerates(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a pod with these tolerations is not kept off by this taint."""
    return any(
        one.get("key") in {None, "", taint["key"]}
        and one.get("effect") in {None, "", taint["effect"]}
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in tolerations
    )


def _meets(node: NodeView, term: Mapping[str, Any]) -> bool:
    by_name = all(_holds(one, {"metadata.name": node.name}) for one in term.get("matchFields") or ())
    return by_name and all(_holds(one, node.labels) for one in term.get("matchExpressions") or ())


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector chooses an object with these labels; one without any condition chooses all."""
    if selector is None:
        return False
    named = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return named and all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(expression["key"]), list(expression.get("values") or ())
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as order:
            numbers = value is not None and value.isdecimal() and wanted[0].isdecimal()
            return numbers and (int(value or 0) > int(wanted[0])) == (order == "Gt") and value != wanted[0]
    return False
