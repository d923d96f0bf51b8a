"""Native gangs: the scheduler places a group whole. What it leaves half placed is taken back, unless that is no use."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.api.document import load
from bireme.api.status import Condition
from bireme.names import ConditionType, GroupState, Reason
from bireme_operator.plan.actions import CreatePod, DeletePod
from bireme_operator.plan.gates import STUCK_S
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.plan import Plan
from bireme_operator.plan.providers import NO_GANGS, Gang, gang_key, gang_of, no_gangs, with_gates
from tests.planner.test_gates import Nodes
from tests.planner.world import World, wanted

WHY = no_gangs("none", sees_nodes=True)


def native(replicas: int = 1, stages: int = 2) -> World:
    base = wanted(replicas=replicas, stages=stages, gang=Gang.NATIVE)
    world = World(replace(base, recovery=replace(base.recovery, whole=True)))
    world.step()
    return world


def half_place(world: World) -> None:
    """The leader gets a node, for the other stages there is none."""
    for name, pod in world.pods.items():
        held = pod.stage == 0
        world.pods[name] = replace(
            pod, phase=Phase.RUNNING if held else Phase.PENDING, node="a" if held else "", unplaced=not held
        )


def scheduled(result: Plan) -> Condition:
    return next(one for one in result.status.conditions if one.type == ConditionType.SCHEDULED)


def test_a_gang_that_waits_whole_is_waited_for() -> None:
    world = native()
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, phase=Phase.PENDING, unplaced=True)
    for _ in range(5):
        result = world.step()
        assert not result.actions
        assert result.status.groups[0].reason == Reason.UNSCHEDULABLE
        assert world.memory.groups[0].halfway_since is None
        world.advance(STUCK_S)


@pytest.mark.parametrize("served", [False, True])
def test_a_gang_of_which_a_stage_lost_its_place_before_it_came_there_is_made_anew_whole(served: bool) -> None:
    world = native()
    if served:
        world.settle()
        world.vanish(world.pod(0, 1).name)
        world.step()
    half_place(world)
    began = world.step()
    assert began.wake_at is not None
    assert began.wake_at <= world.now + STUCK_S, "nobody has to call"
    world.advance(STUCK_S)
    actions = world.step().actions + world.step().actions
    assert len([one for one in actions if isinstance(one, DeletePod)]) == 2
    made = [one for one in actions if isinstance(one, CreatePod)]
    assert len({one.incarnation for one in made}) == 1, "in a new PodGroup, which waits whole"
    assert len(made) == 2
    assert world.memory.groups[0].restarts == served, "nobody else has died"


def test_a_stage_that_was_refused_and_is_promised_a_node_now_is_waited_for_while_its_volumes_are_bound() -> None:
    world = native()
    half_place(world)
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, promised="" if pod.node else "b")
    for _ in range(3):
        assert not world.step().actions
        world.advance(STUCK_S)


def test_where_gangs_are_ignored_and_nodes_are_not_seen_the_group_waits_as_it_is_and_says_what_to_turn_on() -> None:
    world = native()
    half_place(world)
    world.desired = world.desired.without_gangs(WHY)
    for _ in range(3):
        result = world.step()
        assert not result.actions, "made anew it would come to the same"
        world.advance(STUCK_S)
    group = result.status.groups[0]
    assert (group.state, group.reason) == (GroupState.PENDING, Reason.NATIVE_GANG_IGNORED)
    assert "--feature-gates=GenericWorkload=true" in group.message
    assert "scheduling.k8s.io/v1beta1=true" in group.message
    assert (scheduled(result).status, scheduled(result).reason) == ("False", Reason.NATIVE_GANG_IGNORED)


def test_where_gangs_are_ignored_gates_takes_over_in_time() -> None:
    world = native()
    half_place(world)
    world.step()
    world.advance(STUCK_S)
    world.desired = replace(world.desired.without_gangs(WHY), gang=Gang.GATES)
    ended = [one.name for one in world.step().actions if isinstance(one, DeletePod)]
    assert len(ended) == 2, "its devices are free at once: it was halfway for long"
    for name, pod in world.pods.items():
        assert pod.incarnation == 2
        world.pods[name] = replace(pod, phase=Phase.RUNNING, node="b")
    result = world.settle()
    told = scheduled(result)
    assert (told.status, told.reason, told.message) == ("True", Reason.NATIVE_GANG_IGNORED, WHY)


class Ignorant(Nodes):
    """A cluster whose scheduler binds each stage by itself, whatever PodGroup it is of."""

    def step(self) -> Plan:
        result = super().step()
        for action in result.actions:
            if isinstance(action, CreatePod) and self.world.desired.gang is Gang.NATIVE:
                self.world.pods[action.name] = replace(self.world.pods[action.name], gated=False)
        return result

    def schedule(self) -> None:
        for name, pod in sorted(self.world.pods.items()):
            if pod.gated or pod.node:
                continue
            home = next((node for node in sorted({pod.aim} if pod.aim else self.gpus) if self.free(node) >= 8), "")
            running = {"phase": Phase.RUNNING, "node": home, "unplaced": False, "started_at": self.world.now}
            self.world.pods[name] = replace(pod, **(running if home else {"unplaced": True}))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 8, 16]), min_size=1, max_size=5),
    stages=st.integers(1, 3),
    replicas=st.integers(1, 3),
    lost=st.lists(st.integers(0, 8), max_size=4),
)
def test_whatever_an_ignorant_scheduler_has_half_placed_gates_takes_back_and_places_whole_what_fits(
    sizes: list[int], stages: int, replicas: int, lost: list[int]
) -> None:
    world = World(wanted(replicas=replicas, stages=stages, gang=Gang.NATIVE).without_gangs(""))
    nodes = Ignorant(world, {f"n{index}": size for index, size in enumerate(sizes)})
    for number in lost:
        nodes.step()
        nodes.schedule()
        if world.pods:
            world.vanish(sorted(world.pods)[number % len(world.pods)])
        world.advance(STUCK_S / 2)
    world.desired = replace(world.desired.without_gangs(WHY), gang=Gang.GATES)
    for _ in range(60):
        nodes.step()
        nodes.schedule()
        world.advance(10)
    assert not nodes.halves(), "half a gang holds devices for good"
    fit = min(replicas, sum(sizes) // 8 // stages)
    failed = sum(group.failure is not None for group in world.memory.groups.values())
    assert nodes.step().status.ready_replicas >= fit - failed


def test_a_server_without_pod_groups_is_said_to_have_no_gangs() -> None:
    world = World(wanted(gang=Gang.NATIVE))
    refused = replace(world.observe(), refusal=no_gangs("it serves no PodGroups", sees_nodes=False))
    world.observe = lambda: refused  # type: ignore[method-assign]
    result = world.step_without_applying()
    stalled = next(one for one in result.status.conditions if one.type == ConditionType.STALLED)
    assert (stalled.status, stalled.reason) == ("True", Reason.NATIVE_GANG_IGNORED)
    assert not result.actions


ASKED = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: demo, annotations: {RESUME}}
spec:
  replicas: REPLICAS
  model: {source: {path: /models/m}, revision: one}
  placement: {scheduler: Native, topology: [{key: RACK}]}
  template: {spec: {schedulerName: NAME}}
"""


def asked(replicas: str = "1", rack: str = "rack", name: str = "default-scheduler", resume: str = "") -> str:
    annotations = f"bireme.dev/resume: '{resume}'" if resume else ""
    text = ASKED.replace("RESUME", annotations).replace("REPLICAS", replicas).replace("RACK", rack)
    return gang_key(load(text.replace("NAME", name)))


def test_the_native_scheduler_is_asked_anew_for_another_placement_or_on_request_and_for_nothing_else() -> None:
    known = asked()
    assert asked(replicas="2") == known
    assert len({known, asked(rack="zone"), asked(name="other"), asked(resume="1"), asked(resume="2")}) == 5


def test_gates_stands_in_for_the_native_scheduler_with_the_same_topology() -> None:
    text = ASKED.replace("RESUME", "").replace("REPLICAS", "1").replace("RACK", "rack").replace("NAME", "x")
    deployment = load(text)
    assert gang_of(with_gates(deployment).spec.placement) is Gang.GATES
    assert with_gates(deployment).spec.placement.topology == deployment.spec.placement.topology
    assert gang_of(deployment.spec.placement) is Gang.NATIVE, "what is asked stays"
    assert WHY.startswith(NO_GANGS)
