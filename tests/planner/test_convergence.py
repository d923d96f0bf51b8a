"""Whatever dies, vanishes, falls silent or is changed in whatever order: the planner brings the world back, calmly.

The operator is one of those who die: at any step, again and again, before and after it could write down what it did.
"""

from dataclasses import replace
from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.names import GroupState
from bireme_operator.plan.actions import AdoptSpare, CreatePod
from bireme_operator.plan.desired import RolloutPolicy
from bireme_operator.plan.observed import Phase
from bireme_operator.plan.plan import plan
from tests.planner.world import Luck, World, wanted

FAULTS = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 20), st.sampled_from([-9, 1, 70, 75, 0])),
    st.tuples(st.just("vanish"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("mute"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("scale"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("roll"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("partition"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("restart"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("requests"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from([0, 1, 30, 700]), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
)
LUCK = st.builds(
    Luck,
    acts=st.one_of(st.none(), st.integers(0, 6)),
    dies=st.booleans(),
    refused=st.booleans(),
    unheard=st.booleans(),
    unwritten=st.booleans(),
)
GOOD_LUCK = Luck()
LIMITS = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)


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
        # The same revision has always the same number of stages.
        world.change(revision=f"rev{number}-{detail}", stages=detail)
    elif kind == "partition":
        world.change(rollout=replace(world.desired.rollout, partition=number))
    elif kind == "restart":
        world.desired = replace(world.desired, restart=str(number))
    elif kind == "requests":
        world.requests[number] = detail
    elif kind == "wait":
        world.advance(number)


def check(world: World) -> None:
    places = [(pod.group, pod.stage) for pod in world.pods.values() if not pod.deleting]
    assert len(places) == len(set(places)), "two living pods of one stage"
    given: list[CreatePod | AdoptSpare] = [*world.created, *world.adopted]
    made = [(pod.group, pod.stage, pod.incarnation) for pod in given]
    assert len(made) == len(set(made)), "an incarnation was given away twice"


@settings(max_examples=250, deadline=None)
@given(
    faults=st.lists(FAULTS, max_size=25),
    lucks=st.lists(LUCK, max_size=25),
    stages=st.integers(1, 3),
    policy=st.tuples(st.sampled_from([0, 2, 6, 1000]), st.booleans()),
    limits=LIMITS,
)
def test_any_history_of_faults_ends_in_what_is_wanted_or_in_a_failure_that_is_told(
    faults: list[tuple[str, int, int]],
    lucks: list[Luck],
    stages: int,
    policy: tuple[int, bool],
    limits: tuple[int, int],
) -> None:
    budget, whole = policy
    desired = wanted(replicas=2, stages=stages, rollout=RolloutPolicy(*limits))
    world = World(replace(desired, recovery=replace(desired.recovery, budget=budget, whole=whole)))
    for fault, luck in zip_longest(faults, lucks):
        strike(world, fault or ("pass", 0, 0))
        world.visit(luck or GOOD_LUCK)
        check(world)
    world.mute.clear()
    world.requests.clear()
    world.change(rollout=replace(world.desired.rollout, partition=0))
    last = world.settle()
    check(world)
    given_up = world.memory.progress is not None and world.memory.progress.failed != ""
    assert len(last.status.groups) == world.desired.replicas
    for group in last.status.groups:
        pods = [pod for pod in world.pods.values() if pod.group == group.index]
        if group.state is GroupState.FAILED:
            assert group.message
            assert all(pod.phase is Phase.EXITED for pod in pods), "a failed group holds no device"
        else:
            assert group.state is GroupState.SERVING
            failed = given_up or any(other.state is GroupState.FAILED for other in last.status.groups)
            assert failed or {pod.revision for pod in pods} == {world.desired.revision}
            assert failed or sorted(pod.stage for pod in pods) == list(range(world.desired.stages))


@settings(max_examples=80, deadline=None)
@given(
    wishes=st.lists(st.sampled_from(["rev1", "rev2", "rev3"]), min_size=1, max_size=4),
    passes=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    replicas=st.integers(1, 5),
    limits=LIMITS,
    lucks=st.lists(LUCK, max_size=40),
)
def test_rollouts_alone_never_go_beyond_their_limits_however_often_the_operator_dies(
    wishes: list[str], passes: list[int], replicas: int, limits: tuple[int, int], lucks: list[Luck]
) -> None:
    surge, unavailable = limits
    world = World(wanted(replicas=replicas, rollout=RolloutPolicy(*limits)))
    world.settle()
    for wish, count in zip([*wishes, wishes[-1]], [*passes, 80], strict=False):
        world.change(revision=wish)
        for _ in range(count):
            status = world.visit(lucks.pop() if lucks else GOOD_LUCK).status
            check(world)
            assert status.ready_replicas >= replicas - unavailable
            assert len({pod.group for pod in world.pods.values()}) <= replicas + surge
    world.settle()
    assert {pod.revision for pod in world.pods.values()} == {wishes[-1]}


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
