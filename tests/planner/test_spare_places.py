"""Spares where groups are placed whole: each stands by in the domain of a group, and serves that domain's groups only."""

from dataclasses import replace

import pytest

from bireme_operator.plan.actions import AdoptSpare, CreatePod, CreateSpare, LiftGate
from bireme_operator.plan.observed import SPARE, Observed, Phase
from bireme_operator.plan.places import HOSTNAME, Topology
from bireme_operator.plan.plan import Plan, plan
from bireme_operator.plan.providers import Gang
from tests.planner.test_gates import NEEDS, RACK, Nodes
from tests.planner.world import World, wanted


class Spared(Nodes):
    """Spares are gated as the stages are, and stand by as soon as they have their node."""

    def free(self, node: str) -> int:
        return super().free(node) - 8 * sum(pod.node == node for pod in self.world.spares.values())

    def observe(self) -> Observed:
        labels = {name: {HOSTNAME: name, RACK: rack} for name, rack in self.racks.items()}
        return replace(super().observe(), labels=labels)

    def step(self) -> Plan:
        world = self.world
        result = plan(world.desired, self.observe(), world.memory, world.now)
        world.memory = result.memory
        for action in result.actions:
            match action:
                case LiftGate():
                    pods = world.spares if action.group == SPARE else world.pods
                    pods[action.pod] = replace(pods[action.pod], gated=False, aim=action.hostname)
                case CreatePod():
                    world.apply(action)
                    waits = {"phase": Phase.PENDING, "gated": True, "unplaced": True}
                    world.pods[action.name] = replace(world.pods[action.name], **waits)  # type: ignore[arg-type]
                case CreateSpare():
                    world.apply(action)
                    waits = {"phase": Phase.PENDING, "gated": True, "ready": False}
                    world.spares[action.name] = replace(world.spares[action.name], **waits)  # type: ignore[arg-type]
                case _:
                    world.apply(action)
        return result

    def schedule(self) -> None:
        super().schedule()
        for name, pod in sorted(self.world.spares.items()):
            if pod.aim and not pod.node:
                ready = {"node": pod.aim, "phase": Phase.RUNNING, "ready": True}
                self.world.spares[name] = replace(pod, **ready)  # type: ignore[arg-type]

    def settle(self) -> None:
        for _ in range(8):
            self.step()
            self.schedule()

    def rack_of_group(self, group: int) -> str:
        (rack,) = {self.racks[pod.node] for pod in self.pods(group)}
        return rack


def served(spares: int, *, exclusive: bool = False) -> Spared:
    """Two groups of two stages, each in a rack of three nodes."""
    near = Topology((RACK,), exclusive=exclusive)
    world = World(wanted(replicas=2, spares=spares, gang=Gang.GATES, topology=near))
    nodes = Spared(world, dict.fromkeys("abcdef", 8), racks=2)
    nodes.settle()
    assert nodes.step().status.ready_replicas == 2
    assert {nodes.rack_of_group(0), nodes.rack_of_group(1)} == {"r0", "r1"}
    return nodes


@pytest.mark.parametrize("exclusive", [False, True])
def test_each_spare_stands_by_in_the_domain_of_another_group(exclusive: bool) -> None:
    nodes = served(2, exclusive=exclusive)
    assert sorted(nodes.racks[pod.node] for pod in nodes.world.spares.values()) == ["r0", "r1"]


@pytest.mark.parametrize("group", [0, 1])
def test_a_lost_stage_is_taken_over_by_the_spare_of_its_domain(group: int) -> None:
    nodes = served(2)
    (beside,) = [pod for pod in nodes.world.spares.values() if nodes.racks[pod.node] == nodes.rack_of_group(group)]
    nodes.world.vanish(nodes.world.pod(group, 1).name)
    (adopted,) = [one for one in nodes.step().actions if isinstance(one, AdoptSpare)]
    assert (adopted.name, adopted.group) == (beside.name, group)
    nodes.settle()
    assert nodes.step().status.ready_replicas == 2
    nodes.rack_of_group(group)  # one


def test_a_spare_of_another_domain_is_no_help() -> None:
    nodes = served(1)
    (spare,) = nodes.world.spares.values()
    far = next(group for group in (0, 1) if nodes.rack_of_group(group) != nodes.racks[spare.node])
    nodes.world.vanish(nodes.world.pod(far, 1).name)
    result = nodes.step()
    assert not [one for one in result.actions if isinstance(one, AdoptSpare)]
    nodes.settle()
    assert nodes.step().status.ready_replicas == 2
    nodes.rack_of_group(far)


def test_a_spare_without_a_place_in_a_group_s_domain_waits_and_holds_nothing() -> None:
    world = World(wanted(replicas=1, spares=1, gang=Gang.GATES, topology=Topology((RACK,))))
    nodes = Spared(world, {"a": 8, "b": 8, "c": 8, "d": 0}, racks=2)
    nodes.settle()
    (spare,) = world.spares.values()
    assert spare.gated
    assert nodes.observe().needs == NEEDS
    nodes.gpus["a" if nodes.rack_of_group(0) == "r0" else "b"] = 16
    nodes.settle()
    (spare,) = world.spares.values()
    assert nodes.racks[spare.node] == nodes.rack_of_group(0)
