"""A pass that knows what the last one thought of each group plans what one plans that knows nothing."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.names import GroupState
from bireme_operator.plan.observed import LeaderView, Observed, PodView
from bireme_operator.plan.plan import plan
from bireme_operator.plan.rest import Rest
from tests.planner.world import World, wanted


@dataclass
class Twice(World):
    """Plans every pass twice, and sees what has not changed as the same objects, as the operator does."""

    rest: Rest = field(default_factory=Rest)
    seen: dict[str, PodView] = field(default_factory=dict)
    heard: dict[int, LeaderView] = field(default_factory=dict)
    resting: int = 0

    def observe(self) -> Observed:
        seen = super().observe()
        self.seen = {pod.name: self._same(pod) for pod in seen.pods}
        self.heard = {group: self._word(group, view) for group, view in seen.leaders.items()}
        seen = replace(seen, pods=tuple(self.seen.values()), leaders=self.heard)
        asked = self.desired, seen, self.memory, self.now
        knowing = plan(*asked, self.rest)
        assert knowing == plan(*asked)
        groups = plan(*asked, self.rest).memory.groups.items()
        self.resting = sum(self.rest.find(index, known, seen, self.now) is not None for index, known in groups)
        return seen

    def _same(self, pod: PodView) -> PodView:
        known = self.seen.get(pod.name)
        return known if known == pod and known is not None else pod

    def _word(self, group: int, view: LeaderView) -> LeaderView:
        known = self.heard.get(group)
        if known is not None and known.pod == view.pod and known.document == view.document:
            return replace(view, word=known.word)
        return replace(view, word=object())


def test_groups_that_serve_are_not_thought_of_again() -> None:
    world = Twice(wanted(replicas=5))
    world.settle()
    world.step()
    world.step()
    assert world.resting == 5
    world.kill(world.pod(2, 1).name)
    world.observe()
    assert world.resting == 4, "the one that has lost a stage"
    world.settle()
    world.step()
    world.change(revision="rev2")
    assert world.settle().status.updated_replicas == 5


def test_a_memory_that_somebody_changed_is_looked_at() -> None:
    world = Twice(wanted(replicas=3))
    world.settle()
    world.step()
    world.step()
    world.memory = replace(world.memory, groups={**world.memory.groups, 1: replace(world.memory.groups[1], restarts=7)})
    assert world.step().status.groups[1].restarts == 7


def test_a_leader_that_falls_silent_is_missed() -> None:
    world = Twice(wanted(replicas=3))
    world.settle()
    world.step()
    view = world.heard[1]
    world.advance(4)
    late = Observed(
        tuple(world.seen.values()), {**{g: replace(v, heard_at=world.now) for g, v in world.heard.items()}, 1: view}
    )
    states = [group.state for group in plan(world.desired, late, world.memory, world.now, world.rest).status.groups]
    assert states == [GroupState.SERVING, GroupState.RECOVERING, GroupState.SERVING]


CHANGES = st.one_of(
    st.tuples(st.just("kill"), st.integers(0, 12), st.sampled_from([-9, 0, 64])),
    st.tuples(st.just("vanish"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("mute"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("scale"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("roll"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("pause"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 3, 31, 400]), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(changes=st.lists(CHANGES, max_size=15), whole=st.booleans())
def test_in_any_order_of_events_it_plans_the_same(changes: list[tuple[str, int, int]], whole: bool) -> None:
    world = Twice(wanted(replicas=3))
    world.desired = replace(world.desired, recovery=replace(world.desired.recovery, whole=whole))
    for kind, number, code in changes:
        _change(world, kind, number, code)
        world.step()
        world.step()
    world.mute.clear()
    world.desired = replace(world.desired, paused=False)
    for _ in range(5):
        world.step()
        world.advance(1)


def _change(world: Twice, kind: str, number: int, code: int) -> None:
    name = sorted(world.pods)[number % len(world.pods)] if world.pods else ""
    match kind:
        case "kill" if name:
            world.kill(name, code)
        case "vanish" if name:
            world.vanish(name)
        case "leave" if name:
            world.pods[name] = replace(world.pods[name], node="n1", node_leaving=not world.pods[name].node_leaving)
        case "mute":
            world.mute ^= {number}
        case "scale":
            world.change(replicas=number)
        case "roll":
            world.change(revision=f"rev{number}")
        case "pause":
            world.desired = replace(world.desired, paused=bool(number))
        case "wait":
            world.advance(number)
