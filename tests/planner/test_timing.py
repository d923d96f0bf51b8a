"""How long each step of a start or recovery took, as `status.groups[].timings` says it."""

from collections.abc import Sequence
from dataclasses import replace

from bireme.api.status import GroupTimings
from bireme.names import GroupState
from bireme.wire.state import RankState, StageState
from bireme_operator.plan.observed import LeaderView, Observed, Phase
from bireme_operator.plan.plan import plan
from tests.planner.world import World, document, wanted


class Told(World):
    """A world of one group whose leader says in which phase the ranks are."""

    def look(self, seconds: float, *phases: str, state: GroupState = GroupState.RECOVERING) -> GroupTimings:
        """Let time pass, then look at a group whose stages' ranks are in these phases."""
        self.now += seconds
        stages = tuple(StageState(n, 1, "b", 0.0, (_rank(phase),)) for n, phase in enumerate(phases))
        leader = document(self.pod(0, 0), state=state.value, stages=stages)
        view = LeaderView(self.pod(0, 0).name, leader, self.now)
        return self.tell(Observed(tuple(self.pods.values()), {0: view}))

    def unheard(self, seconds: float, phase: Phase = Phase.RUNNING, **changes: object) -> GroupTimings:
        """Let time pass, then look at a group whose leader says nothing and whose pods are in this phase."""
        self.now += seconds
        pods = [replace(pod, phase=phase, **changes) for pod in self.pods.values()]  # type: ignore[arg-type]
        return self.tell(Observed(tuple(pods)))

    def tell(self, observed: Observed) -> GroupTimings:
        """Look at this."""
        result = plan(self.desired, observed, self.memory, self.now)
        self.memory = result.memory
        return result.status.groups[0].timings


def _rank(phase: str) -> RankState:
    return RankState(0, alive=True, pid=1, phase=phase, step=0, step_age_s=0.0, loads=1)


def _serving() -> Told:
    world = Told(wanted(replicas=1))
    world.settle()
    return world


def _served(timings: GroupTimings) -> Sequence[int | None]:
    return (
        timings.schedule_milliseconds,
        timings.start_milliseconds,
        timings.load_milliseconds,
        timings.rendezvous_milliseconds,
        timings.warm_milliseconds,
        timings.total_milliseconds,
    )


def test_each_step_counts_from_the_moment_on_in_which_the_slowest_part_was_in_it() -> None:
    world = _serving()
    world.look(10.0, "Serving", "Down")
    world.look(0.2, "Ending", "Loading")
    world.look(0.1, "Idle", "Loading")
    world.look(1.5, "Idle", "Idle")
    world.look(0.05, "Forming", "Forming")
    timings = world.look(0.25, "Serving", "Serving", state=GroupState.SERVING)
    assert _served(timings) == (None, 200, 1600, 50, 250, 2100)


def test_a_step_that_comes_twice_counts_both_times() -> None:
    world = _serving()
    world.look(10.0, "Serving", "Loading")
    world.look(1.0, "Serving", "Down")
    world.look(0.5, "Serving", "Loading")
    timings = world.look(2.0, "Serving", "Serving", state=GroupState.SERVING)
    assert _served(timings) == (None, 500, 3000, None, None, 3500)


def test_a_pod_without_a_node_waits_for_a_place_and_one_without_a_process_for_its_start() -> None:
    world = _serving()
    world.unheard(10.0, Phase.PENDING, unplaced=True)
    world.unheard(4.0, Phase.PENDING, node="gpu-7")
    timings = world.look(3.0, "Serving", "Serving", state=GroupState.SERVING)
    assert _served(timings) == (4000, 3000, None, None, None, 7000)


def test_while_it_goes_on_only_what_is_over_is_told_and_the_next_one_starts_anew() -> None:
    world = _serving()
    world.look(10.0, "Serving", "Loading")
    under_way = world.look(1.0, "Forming", "Forming")
    assert _served(under_way) == (None, None, 1000, None, None, None)
    world.look(0.5, "Serving", "Serving", state=GroupState.SERVING)
    world.look(60.0, "Serving", "Down")
    timings = world.look(0.3, "Serving", "Serving", state=GroupState.SERVING)
    assert _served(timings) == (None, 300, None, None, None, 300)


def test_what_nobody_knew_at_first_counts_from_the_last_sign_of_life() -> None:
    world = _serving()
    world.now += 10
    stages = (StageState(0, 1, "b", 0.0, (_rank("Idle"),)), StageState(1, 1, "b", 2.5, (_rank("Down"),)))
    told = document(world.pod(0, 0), state="Recovering", reason="StageLost", stages=stages)
    view = LeaderView(world.pod(0, 0).name, told, world.now - 0.25)
    world.tell(Observed(tuple(world.pods.values()), {0: view}))
    world.look(16.0, "Idle", "Loading")  # a node that is called lost, at last
    timings = world.look(4.0, "Serving", "Serving", state=GroupState.SERVING)
    assert timings.detect_milliseconds == 18_750, "2.75 s before the loss was seen, 16 until its cause was"
    assert timings.load_milliseconds == 4_000
    assert timings.total_milliseconds == 22_750


def test_a_leader_is_missed_from_its_last_word_on() -> None:
    world = _serving()
    heard = LeaderView(world.pod(0, 0).name, document(world.pod(0, 0)), world.now, connected=False)
    world.now += 0.75
    world.tell(Observed(tuple(world.pods.values()), {0: heard}))
    timings = world.look(2.0, "Serving", "Serving", state=GroupState.SERVING)
    assert timings.detect_milliseconds == 750
    assert timings.total_milliseconds == 2_750


def test_a_hung_rank_was_missed_for_as_long_as_it_made_no_step() -> None:
    world = _serving()
    ranks = tuple(RankState(0, alive=True, pid=1, phase="Serving", step=9, step_age_s=s, loads=1) for s in (0.5, 8.25))
    stages = (StageState(0, 1, "b", 0.0, ranks),)
    told = document(world.pod(0, 0), state="Recovering", reason="Hung", stages=stages)
    world.tell(Observed(tuple(world.pods.values()), {0: LeaderView(world.pod(0, 0).name, told, world.now)}))
    timings = world.look(1.0, "Serving", "Serving", state=GroupState.SERVING)
    assert timings.detect_milliseconds == 8_250


def test_a_first_start_has_nothing_to_detect() -> None:
    assert _serving().look(1.0, "Serving", "Serving", state=GroupState.SERVING).detect_milliseconds is None
