"""Nodes that are to be emptied: groups are built elsewhere first, as many at a time as the budget has, then they go."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.names import ConditionType, Event, GroupState
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.memory import Draining, GroupMemory, Purpose
from bireme_operator.plan.observed import Leave, Phase
from bireme_operator.plan.own import guarded
from bireme_operator.plan.scale import HURRY_S, NO_ROOM_S
from tests.planner.test_cluster import cordon, groups_of
from tests.planner.test_rollout import condition
from tests.planner.world import World, wanted


def settled(replicas: int, budget: int) -> World:
    world = World(wanted(replicas=replicas, unavailable_groups=budget, drain_timeout_s=10))
    world.settle()
    return world


def full(world: World) -> None:
    """No node has room for a pod that is new: the first ones are all that ever run."""
    for name, pod in world.pods.items():
        if pod.incarnation > 1 or pod.group >= world.desired.replicas:
            world.pods[name] = replace(pod, phase=Phase.PENDING, unplaced=True, message="0/2 nodes are available")


def pass_time(world: World, seconds: float) -> int:
    """Let time go by in a full cluster; the fewest groups that served."""
    fewest = world.desired.replicas
    until = world.now + seconds
    while world.now < until:
        full(world)
        fewest = min(fewest, world.step().status.ready_replicas)
        full(world)
        world.advance(1)
    return fewest


@pytest.mark.parametrize(("budget", "at_once"), [(0, 1), (1, 1), (2, 2), (5, 3)])
def test_as_many_groups_move_at_the_same_time_as_the_budget_has(budget: int, at_once: int) -> None:
    world = settled(3, budget)
    for group in range(3):
        cordon(world, group)
    most = 0
    for _ in range(60):
        status = world.step().status
        assert status.ready_replicas >= 3, "the successor serves before the group goes"
        serving = {one.index for one in status.groups if one.state is GroupState.SERVING}
        most = max(most, len(groups_of(world)) - 3)
        world.advance(1)
    assert most == at_once
    assert serving == groups_of(world)
    assert not any(pod.node_leaving for pod in world.pods.values())


@pytest.mark.parametrize(("budget", "left"), [(0, 3), (1, 2), (2, 1), (3, 1)])
def test_where_there_is_no_room_as_many_groups_are_stopped_as_the_budget_has_and_never_the_last(
    budget: int, left: int
) -> None:
    world = settled(3, budget)
    for group in range(3):
        cordon(world, group)
    assert pass_time(world, NO_ROOM_S - 2) == 3, "a place is waited for first"
    assert pass_time(world, 10 * NO_ROOM_S) == left
    full(world)
    status = world.step().status
    assert status.ready_replicas == left
    told = condition(status, ConditionType.SCHEDULED)
    assert told[0] == "False"
    assert "there is no room for its successor" in told[2]


def test_a_single_group_without_room_for_its_successor_stays() -> None:
    world = settled(1, 1)
    cordon(world, 0)
    assert pass_time(world, 10 * NO_ROOM_S) == 1


def test_the_successor_of_a_stopped_group_comes_when_there_is_room() -> None:
    world = settled(2, 1)
    cordon(world, 0)
    pass_time(world, 2 * NO_ROOM_S)
    assert world.step().status.ready_replicas == 1
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, phase=Phase.RUNNING, unplaced=False, started_at=world.now)
    status = world.settle().status
    assert status.ready_replicas == status.replicas == 2


def test_a_group_that_is_to_leave_says_so() -> None:
    world = settled(2, 1)
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, node=f"node-{pod.group}", node_leaving=pod.group == 0)
    told = next(group.message for group in world.step().status.groups if group.index == 0)
    assert told == "group 0 is to leave node-0"


def test_a_group_that_is_down_on_a_cordoned_node_costs_no_other_its_place() -> None:
    world = settled(3, 1)
    cordon(world, 0)
    cordon(world, 1)
    world.mute.add(0)
    world.advance(60)
    for _ in range(80):
        assert world.step().status.ready_replicas >= 2
        if not any(pod.node_leaving for pod in world.pods.values() if pod.group == 0):
            world.mute.clear()  # the group is gone, and its index free for another
        world.advance(1)
    assert not any(pod.node_leaving for pod in world.pods.values())
    assert world.settle().status.ready_replicas == 3


def place(world: World, running: set[str]) -> None:
    """Let these pods run, and the others wait for room."""
    for name, pod in world.pods.items():
        waits = name not in running
        world.pods[name] = replace(pod, phase=Phase.PENDING if waits else Phase.RUNNING, unplaced=waits)


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["cordon", "uncordon", "full", "room"]), st.integers(0, 5)), max_size=10),
)
@settings(max_examples=25)
def test_whatever_is_cordoned_no_more_groups_are_missing_than_the_budget_has(
    budget: int, events: list[tuple[str, int]]
) -> None:
    world, is_full = settled(3, budget), False
    running = set(world.pods)
    for what, number in events:
        groups = sorted(groups_of(world))
        if what in {"full", "room"}:
            is_full = what == "full"
        else:
            cordon(world, groups[number % len(groups)], leaving=what == "cordon")
        for _ in range(20):
            running = running & set(world.pods) if is_full else set(world.pods)
            place(world, running)
            assert world.step().status.ready_replicas >= max(3 - budget, 1)
            world.advance(4)


def silence(world: World, group: int, *, silent: bool = True) -> None:
    """The kubelets of a group are not heard for long, or are heard again."""
    leave = Leave("its kubelet has been silent", patient=True) if silent else Leave()
    for name, pod in world.pods.items():
        if pod.group == group:
            world.pods[name] = replace(pod, node=f"node-{group}", node_leaving=silent, leave=leave)


def test_a_group_whose_kubelet_is_silent_moves_when_its_successor_serves_and_says_why() -> None:
    world = settled(2, 1)
    silence(world, 0)
    passes = [world.step()]
    told = next(group.message for group in passes[0].status.groups if group.index == 0)
    assert told == "group 0 is to leave node-0 (its kubelet has been silent)"
    while 0 in groups_of(world):
        passes.append(world.step())
        assert passes[-1].status.ready_replicas >= 2
        world.advance(1)
    said = [news.message for one in passes for news in one.news if news.event is Event.GROUP_MOVES]
    assert said == [
        "it is to leave node-0 (its kubelet has been silent); it is made elsewhere first where there is room"
    ]
    assert world.settle().status.ready_replicas == 2


def test_groups_that_serve_no_more_do_not_wait_for_one_another_whatever_the_budget() -> None:
    world = settled(3, 1)
    for group in (0, 1):
        world.mute.add(group)
        silence(world, group)
    for _ in range(60):
        status = world.step().status
        world.advance(1)
    assert status.ready_replicas == 3
    assert groups_of(world) >= {2, 3, 4}


@pytest.mark.parametrize("down_s", [5, 29])
def test_groups_that_move_and_do_not_serve_for_a_moment_get_no_successors_beyond_the_budget(down_s: int) -> None:
    world = settled(4, 1)
    for group in range(4):
        silence(world, group)
    world.step()
    world.mute.update(range(5))
    for _ in range(down_s):
        world.advance(1)
        world.step()
    assert groups_of(world) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_without_room_for_its_successor_it_serves_on_whatever_the_budget(budget: int) -> None:
    world = settled(3, budget)
    silence(world, 0)
    silence(world, 1)
    assert pass_time(world, 10 * NO_ROOM_S) == 3
    silence(world, 0, silent=False)
    silence(world, 1, silent=False)
    world.settle()
    assert groups_of(world) == {0, 1, 2}, "the kubelets are back before anything moved"


def test_whoever_is_cordoned_as_well_does_not_wait_for_ever() -> None:
    world = settled(3, 1)
    silence(world, 0)
    cordon(world, 1)
    assert pass_time(world, 10 * NO_ROOM_S) == 2
    assert {pod.group for pod in world.pods.values() if pod.node_leaving} == {0}


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(["silence", "hear", "full", "room"]), st.integers(0, 5)), max_size=10),
)
@example(1, [("full", 0), ("silence", 0)])
@settings(max_examples=25)
def test_whichever_kubelets_fall_silent_as_many_groups_serve_as_are_wanted(
    budget: int, events: list[tuple[str, int]]
) -> None:
    world, is_full = settled(3, budget), False
    running = set(world.pods)
    for what, number in events:
        groups = sorted(groups_of(world))
        if what in {"full", "room"}:
            is_full = what == "full"
        else:
            silence(world, groups[number % len(groups)], silent=what == "silence")
        for _ in range(20):
            running = running & set(world.pods) if is_full else set(world.pods)
            place(world, running)
            assert world.step().status.ready_replicas >= 3
            assert len(groups_of(world)) <= 3 + max(budget, 1)
            world.advance(4)


def reclaim(world: World, group: int, notice_s: float) -> float:
    """The nodes of a group are taken away; when."""
    by = world.now + notice_s
    for name, pod in world.pods.items():
        if pod.group == group:
            leave = Leave("taint example.com/reclaimed", by)
            world.pods[name] = replace(pod, node=f"node-{group}", node_leaving=True, leave=leave)
    return by


def test_a_group_whose_node_goes_in_two_minutes_is_drained_as_soon_as_its_successor_serves() -> None:
    world = settled(2, 1)
    by = reclaim(world, 0, 120)
    while 0 in groups_of(world):
        assert world.step().status.ready_replicas >= 2
        world.advance(1)
    assert world.now < by - HURRY_S


def test_without_a_successor_it_is_drained_before_its_node_goes_even_as_the_last_and_its_streams_go_on() -> None:
    world = settled(1, 0)
    world.requests[0] = 3
    by = reclaim(world, 0, 60)
    told = next(group.message for group in world.step().status.groups if group.index == 0)
    assert told == "group 0 is to leave node-0 (taint example.com/reclaimed)"
    assert pass_time(world, by - HURRY_S - 1 - world.now) == 1
    assert not world.draining
    pass_time(world, 2)
    assert world.draining
    (drained,) = [one for one in world.drained if one.group == 0]
    assert 0 <= drained.deadline_s <= by - world.now, "what runs is handed over before the node goes"
    pass_time(world, by - world.now)
    assert 0 not in {pod.group for pod in world.pods.values() if pod.node_leaving}


def test_it_is_drained_in_time_while_another_group_is_in_doubt() -> None:
    world = settled(3, 0)
    world.requests[0] = 3
    by = reclaim(world, 0, 60)
    pass_time(world, by - HURRY_S - 3 - world.now)
    assert not world.drained
    world.mute.add(1)
    for pod in [pod for pod in world.pods.values() if pod.group == 1]:
        world.pods[pod.name] = replace(pod, started_at=world.now)  # its leader was heard till now
    pass_time(world, 6)
    assert [one.group for one in world.drained] == [0]


def test_groups_whose_nodes_go_are_all_built_elsewhere_at_once_whatever_the_budget() -> None:
    world = settled(3, 1)
    for group in range(3):
        reclaim(world, group, 120)
    world.step()
    assert len(groups_of(world)) == 6


def test_a_waiting_pod_is_made_anew_when_the_node_that_it_was_kept_off_is_open_again() -> None:
    world = settled(2, 1)
    cordon(world, 0)
    world.step()
    full(world)
    (waiting,) = [pod for pod in world.pods.values() if pod.unplaced and pod.stage == 0]
    quiet = [world.step().actions for _ in range(5)]
    assert not any(quiet), "it waits, and nothing is done again and again"
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, stranded=pod.unplaced)
    made = [action for action in world.step().actions if isinstance(action, CreatePod)]
    assert {(one.group, one.incarnation) for one in made} == {(waiting.group, waiting.incarnation + 1)}
    assert world.settle().status.restarts == 0


@pytest.mark.parametrize(("words", "reason"), [("PreemptionByScheduler: for a pod", "Preempted"), ("", "StageLost")])
def test_a_stage_that_had_to_give_way_is_called_so(words: str, reason: str) -> None:
    world = settled(2, 1)
    gone = world.pod(0, 1)
    world.pods[gone.name] = replace(gone, deleting=True, disrupted=words)
    world.step()
    for name, pod in world.pods.items():
        if (pod.group, pod.stage) == (0, 1) and name != gone.name:
            world.pods[name] = replace(pod, phase=Phase.PENDING)
    told = next(group for group in world.step().status.groups if group.index == 0)
    assert told.reason == reason
    assert (words in told.message) or not words


def test_a_group_that_goes_for_good_is_guarded_until_all_its_pods_are_asked_to_end() -> None:
    world = World(wanted(replicas=3))
    world.settle()
    leaving = {1: Draining(world.now, Purpose.SCALE_DOWN), 2: Draining(world.now, Purpose.ROLL)}
    groups = {index: replace(known, draining=leaving.get(index)) for index, known in world.memory.groups.items()}
    assert guarded(world.desired, groups, {0, 1, 2}) == {0: 2, 1: 2, 2: 2}
    assert guarded(world.desired, groups, set()) == {0: 2, 2: 2}
    assert guarded(world.desired, {3: GroupMemory(3, world.now, None)}, set()) == {3: 0}
