"""What only a cluster has: pods without a place, nodes that die, a server that refuses pods."""

from dataclasses import replace

import pytest

from bireme.names import ConditionType, GroupState, Reason
from bireme.wire.state import RankState, StageState
from bireme_operator.plan.actions import CreatePod, DeletePod
from bireme_operator.plan.memory import without_pods
from bireme_operator.plan.observed import LeaderView, Observed, Phase, PodView
from bireme_operator.plan.plan import plan
from bireme_operator.plan.rest import Rest
from bireme_operator.plan.suspects import hear, suspects
from tests.planner.world import START, World, document, wanted


def seen(world: World, **changes: object) -> Observed:
    return replace(world.observe(), **changes)  # type: ignore[arg-type]


def test_a_pod_without_a_place_makes_its_group_pending_with_the_scheduler_s_words() -> None:
    world = World(wanted(replicas=1))
    world.step()
    name = world.pod(0, 1).name
    waiting = {"phase": Phase.PENDING, "unplaced": True, "message": "0/4 nodes are available"}
    world.pods[name] = replace(world.pods[name], **waiting)  # type: ignore[arg-type]
    result = world.step()
    group = result.status.groups[0]
    assert (group.state, group.reason) == (GroupState.PENDING, Reason.UNSCHEDULABLE)
    assert "0/4 nodes are available" in group.message
    scheduled = next(c for c in result.status.conditions if c.type == ConditionType.SCHEDULED)
    assert scheduled.status == "False"
    assert not result.actions, "it is waited for"


def test_a_pod_that_was_never_started_has_died_of_nothing() -> None:
    world = World(wanted(replicas=1))
    world.step()
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, phase=Phase.PENDING)
    assert world.step().status.restarts == 0


def test_the_stage_of_a_lost_node_alone_is_made_anew() -> None:
    world = World(wanted())
    world.settle()
    pod = world.pod(1, 1)
    world.pods[pod.name] = replace(pod, node="n7", node_lost=True)
    result = world.step()
    assert [(a.group, a.stage, a.incarnation) for a in result.actions if isinstance(a, CreatePod)] == [(1, 1, 2)]
    assert [action.name for action in result.actions if isinstance(action, DeletePod)] == [pod.name]
    group = result.status.groups[1]
    assert (group.state, group.reason) == (GroupState.RECOVERING, Reason.NODE_LOST)
    assert "n7" in group.message
    assert world.settle().status.ready_replicas == 2


def test_pods_that_the_server_refuses_are_not_made_and_nothing_that_serves_is_touched() -> None:
    world = World(wanted())
    world.settle()
    world.desired = replace(world.desired, revision="rev2", generation=2)
    result = plan(world.desired, seen(world, refusal="unknown field"), world.memory, world.now)
    assert result.actions == ()
    conditions = {condition.type: condition for condition in result.status.conditions}
    assert (conditions["Stalled"].status, conditions["Stalled"].reason) == ("True", Reason.INVALID_TEMPLATE)
    assert conditions["Ready"].message == "unknown field"
    assert conditions["Available"].status == "True"


def test_while_the_server_refuses_what_is_wanted_what_is_lost_comes_back_as_it_was() -> None:
    world = World(wanted())
    world.settle()
    old = world.desired
    world.change(revision="rev2")
    world.kill(world.pod(1, 1).name, 0)
    for _ in range(5):
        result = plan(world.desired, seen(world, refusal="unknown field"), world.memory, world.now)
        for action in result.actions:
            world.apply(action)
        world.memory = result.memory
    assert [(one.group, one.stage, one.revision) for one in world.created[4:]] == [(1, 1, old.revision)]
    assert result.status.ready_replicas == 2
    conditions = {condition.type: condition for condition in result.status.conditions}
    assert (conditions["Stalled"].status, conditions["Stalled"].reason) == ("True", Reason.INVALID_TEMPLATE)
    assert {pod.revision for pod in world.pods.values()} == {old.revision}
    world.settle()
    assert {pod.revision for pod in world.pods.values()} == {"rev2"}


def test_a_group_without_quota_says_so() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    without = {0: "exceeded quota: q"}
    told = plan(world.desired, seen(world, without_quota=without), world.memory, world.now).status.groups[0]
    assert told.state is GroupState.SERVING, "a spare is in the place of what was refused"
    world.vanish(world.pod(0, 1).name)
    told = plan(world.desired, seen(world, without_quota=without), world.memory, world.now).status.groups[0]
    assert (told.state, told.reason) == (GroupState.PENDING, Reason.QUOTA)


def test_while_a_quota_is_short_no_incarnation_is_given_away_and_what_makes_a_group_whole_is_tried_once() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    world.desired = replace(world.desired, replicas=2)
    world.vanish(world.pod(0, 1).name)
    rest, short = Rest(), {"quota_is_short": True, "without_quota": {7: "exceeded quota: q"}}
    result = plan(world.desired, seen(world, **short), world.memory, world.now, rest)
    asked = [one for one in result.actions if isinstance(one, CreatePod)]
    assert [(one.group, one.stage) for one in asked] == [(0, 1)]
    memory = without_pods(result.memory, [one.name for one in asked])
    short["without_quota"] = {0: "exceeded quota: q", 1: "exceeded quota: q"}
    for _ in range(3):
        again = plan(world.desired, seen(world, **short), memory, world.now, rest)
        memory = again.memory
        assert again.actions == ()
        assert again.memory.groups[1].incarnations == {}
    for action in plan(world.desired, seen(world), memory, world.now, rest).actions:
        world.apply(action)
    assert sorted((pod.group, pod.stage) for pod in world.pods.values()) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def placed(stage: int, **changes: object) -> PodView:
    base = PodView(f"p{stage}", 0, stage, 1, "r", "m", Phase.RUNNING, "127.0.0.1", started_at=START, node=f"n{stage}")
    return replace(base, **changes)  # type: ignore[arg-type]


RANK = RankState(0, alive=True, pid=7, phase="Serving", step=1, step_age_s=0.0, loads=1)


def leader_says(
    unheard_s: float, heard_at: float = START + 60, ranks: tuple[RankState, ...] = (RANK,), **changes: object
) -> dict[int, LeaderView]:
    stages = (StageState(0, 1, "b", 0.0, ()), StageState(1, 1, "b", unheard_s, ranks))
    said = LeaderView("p0", document(placed(0), stages=stages), heard_at)
    return {0: replace(said, **changes)}  # type: ignore[arg-type]


NOW = START + 60.5
DOUBTS = {
    "all is well": (leader_says(0.2), {}, set()),
    "the leader does not hear a stage": (leader_says(2.5), {}, {"n1"}),
    "the leader is silent": (leader_says(0.2, heard_at=START + 50), {}, {"n0"}),
    "the leader's stream is broken": (leader_says(0.2, connected=False), {}, {"n0"}),
    "the leader never spoke": ({}, {}, {"n0"}),
    "the leader has just started": ({}, {"started_at": NOW - 1}, set()),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_a_node_is_doubted_on_the_word_of_its_peers_or_by_our_own_ear(case: str) -> None:
    leaders, leader, doubted = DOUBTS[case]
    assert suspects(Observed((placed(0, **leader), placed(1)), leaders), NOW) == doubted


MISSED: dict[str, tuple[dict[int, LeaderView], dict[str, object], set[str], set[str]]] = {
    "all is well": (leader_says(0.2), {}, set(), {"p0", "p1"}),
    "the leader does not hear a stage": (leader_says(2.5), {}, {"p1"}, {"p0"}),
    "it never heard it, and runs for a moment only": (leader_says(0.2, ranks=()), {}, set(), {"p0"}),
    "it does not hear it, and serves all the same": (leader_says(2.5), {"ready": True}, set(), {"p0", "p1"}),
    "nobody hears the leader, and it is not ready": ({}, {}, {"p0"}, set()),
    "only we do not hear the leader": ({}, {"ready": True}, set(), {"p0", "p1"}),
    "the leader starts again": ({}, {"phase": Phase.BACKING_OFF}, set(), set()),
}


@pytest.mark.parametrize("case", MISSED)
def test_who_is_missed_by_a_group_and_who_is_heard(case: str) -> None:
    leaders, leader, unheard, heard = MISSED[case]
    found = hear(Observed((placed(0, **leader), placed(1)), leaders), NOW)
    assert {pod.name for pod in found.unheard} == unheard
    assert found.heard == heard


def test_a_leader_that_hears_none_of_several_others_is_itself_the_one_that_is_missed() -> None:
    said = tuple(StageState(stage, 1, "b", 9.0 if stage else 0.0, ()) for stage in range(3))
    leaders = {0: LeaderView("p0", document(placed(0), stages=said), START + 60)}
    found = hear(Observed((placed(0), placed(1), placed(2)), leaders), NOW)
    assert ([pod.name for pod in found.unheard], found.heard) == (["p0"], frozenset())


def test_a_pod_that_does_not_start_brings_its_node_into_doubt_after_a_while() -> None:
    pod = placed(1, phase=Phase.PENDING, started_at=NOW - 5)
    leaders = leader_says(0.2)
    assert suspects(Observed((placed(0), pod), leaders), NOW) == set()
    assert suspects(Observed((placed(0), replace(pod, started_at=NOW - 11)), leaders), NOW) == {"n1"}


def test_a_pod_on_its_way_out_says_nothing_of_its_node() -> None:
    assert suspects(Observed((placed(0, deleting=True),)), NOW) == set()


def cordon(world: World, group: int, *, leaving: bool = True) -> None:
    for name, pod in world.pods.items():
        if pod.group == group:
            world.pods[name] = replace(pod, node_leaving=leaving)


def groups_of(world: World) -> set[int]:
    return {pod.group for pod in world.pods.values()}


def test_a_group_on_a_cordoned_node_goes_when_its_successor_serves() -> None:
    world = World(wanted())
    world.settle()
    cordon(world, 0)
    world.mute.add(2)
    world.step()
    world.step()
    assert groups_of(world) == {0, 1, 2}
    assert not world.deleted, "the successor does not serve yet"
    world.mute.clear()
    assert world.settle().status.ready_replicas == 2
    assert groups_of(world) == {1, 2}


def test_groups_on_cordoned_nodes_go_one_after_the_other() -> None:
    world = World(wanted())
    world.settle()
    cordon(world, 0)
    cordon(world, 1)
    for _ in range(50):
        serving = world.step().status.ready_replicas
        assert serving >= 2
        world.advance(1)
    assert not any(pod.node_leaving for pod in world.pods.values())
    assert len(groups_of(world)) == 2


def test_a_successor_that_finds_no_place_costs_nothing() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    cordon(world, 0)
    world.mute.add(1)
    for _ in range(20):
        assert world.step().status.ready_replicas == 1
        world.advance(1)
    cordon(world, 0, leaving=False)
    world.settle()
    assert groups_of(world) == {0}, "the cordon was taken back"


def test_nothing_is_made_for_a_cordon_when_no_group_is_wanted() -> None:
    world = World(wanted(replicas=1))
    world.settle()
    cordon(world, 0)
    world.desired = replace(world.desired, replicas=0, generation=2)
    world.settle()
    assert not world.pods
