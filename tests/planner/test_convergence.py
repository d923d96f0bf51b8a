"""Whatever dies, vanishes, falls silent or is changed in whatever order: the planner brings the world back, calmly."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.names import GroupState
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.plan import plan
from tests.planner.world import World, wanted

FAULTS = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 20), st.sampled_from([-9, 1, 70, 75, 0])),
    st.tuples(st.just("vanish"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("mute"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("scale"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("roll"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("requests"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 30, 700]), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
)


def strike(world: World, fault: tuple[str, int, int]) -> None:
    kind, number, detail = fault
    names = sorted(world.pods)
    if kind == "kill" and names:
        world.kill(names[number % len(names)], detail)
    elif kind == "vanish" and names:
        world.vanish(names[number % len(names)])
    elif kind == "mute":
        world.mute ^= {number}
    elif kind == "scale":
        world.desired = replace(world.desired, replicas=number, generation=world.desired.generation + 1)
    elif kind == "roll":
        world.desired = replace(world.desired, revision=f"rev{number}", generation=world.desired.generation + 1)
    elif kind == "requests":
        world.requests[number] = detail
    elif kind == "wait":
        world.advance(number)


def check(world: World) -> None:
    places = [(pod.group, pod.stage) for pod in world.pods.values() if not pod.deleting]
    assert len(places) == len(set(places)), "two living pods of one stage"
    made = [(made.group, made.stage, made.incarnation) for made in world.created]
    assert len(made) == len(set(made)), "an incarnation was given away twice"


@settings(max_examples=300, deadline=None)
@given(faults=st.lists(FAULTS, max_size=25), stages=st.integers(1, 3), budget=st.sampled_from([0, 2, 6, 1000]))
def test_any_history_of_faults_ends_in_what_is_wanted_or_in_a_failure_that_is_told(
    faults: list[tuple[str, int, int]], stages: int, budget: int
) -> None:
    desired = wanted(replicas=2, stages=stages)
    world = World(replace(desired, recovery=replace(desired.recovery, budget=budget)))
    for fault in faults:
        strike(world, fault)
        world.step()
        check(world)
    world.mute.clear()
    world.requests.clear()
    last = world.settle()
    check(world)
    assert len(last.status.groups) == world.desired.replicas
    for group in last.status.groups:
        pods = [pod for pod in world.pods.values() if pod.group == group.index]
        if group.state is GroupState.FAILED:
            assert group.message
            assert all(pod.phase is Phase.EXITED for pod in pods), "a failed group holds no device"
        else:
            assert group.state is GroupState.SERVING
            assert sorted(pod.stage for pod in pods) == list(range(stages))
            failed = any(other.state is GroupState.FAILED for other in last.status.groups)
            assert failed or {pod.revision for pod in pods} == {world.desired.revision}


@settings(max_examples=80, deadline=None)
@given(faults=st.lists(FAULTS, max_size=15))
def test_a_plan_that_was_carried_out_is_not_planned_again(faults: list[tuple[str, int, int]]) -> None:
    world = World(wanted())
    for fault in faults:
        strike(world, fault)
        done = world.step().actions
        again = plan(world.desired, world.observe(), world.memory, world.now)
        assert not [action for action in again.actions if action in done], "the same action twice"


@settings(max_examples=80, deadline=None)
@given(faults=st.lists(FAULTS, max_size=15))
def test_looking_twice_at_the_same_world_counts_nothing_twice(faults: list[tuple[str, int, int]]) -> None:
    world = World(wanted())
    for fault in faults:
        world.step()
        strike(world, fault)
        observed = world.observe()
        once = plan(world.desired, observed, world.memory, world.now)
        twice = plan(world.desired, observed, once.memory, world.now)
        made = {action.group for action in once.actions if isinstance(action, CreatePod)}
        for index in (once.memory.groups.keys() & twice.memory.groups.keys()) - made:
            assert twice.memory.groups[index].restarts == once.memory.groups[index].restarts
