"""A canary goes first, the others wait; a bad one goes back alone, a good one is followed, and nobody passes unseen."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.names import ConditionType, Event, Reason
from bireme.wire.routes import version
from bireme_operator.plan.canary import held_back, trial_of, weights
from bireme_operator.plan.desired import CanaryPolicy, RolloutPolicy
from bireme_operator.plan.figures import Figures, Served
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.news import News
from bireme_operator.plan.plan import Plan
from tests.planner.test_judgement import served
from tests.planner.test_rollout import condition, revisions
from tests.planner.world import World, wanted

CANARY = CanaryPolicy(groups=1, analysis_s=600, requests=100)
GOOD, BAD = served(500), served(400, failed=100)
NEW = {"revision": {"revision": "rev2"}, "checkpoint": {"model_revision": "model2"}}


def settled(replicas: int = 3, surge: int = 1, unavailable: int = 0, **policy: object) -> World:
    rollout = RolloutPolicy(surge, unavailable, canary=replace(CANARY, **policy))  # type: ignore[arg-type]
    world = World(wanted(replicas=replicas, rollout=rollout))
    world.settle()
    return world


def say(world: World, canary: Served, others: Served = GOOD) -> Plan:
    """Have the routers read when the time of the analysis is over, and look once."""
    trial = trial_of(world.desired, world.memory)
    assert trial is not None
    new = version(world.desired.revision, world.desired.model_revision)
    world.figures = Figures(trial, world.now, {new: canary, version("rev1", "model1"): others})
    world.advance(CANARY.analysis_s)
    return world.step()


def versions(world: World) -> list[str]:
    """What each group is, the pods' rendering and the checkpoint that it serves."""
    found = {pod.group: pod for pod in world.pods.values() if pod.stage == 0}
    return sorted(version(pod.revision, world.served.get(group, pod.model_revision)) for group, pod in found.items())


def news_until_settled(world: World) -> list[News]:
    """All that is told until nothing more is done."""
    told: list[News] = []
    for _ in range(100):
        result = world.step()
        told += result.news
        if not result.actions and result.wake_at != world.now:
            return told
    raise AssertionError("not settled")


@pytest.mark.parametrize("limits", [{"surge": 1}, {"surge": 0, "unavailable": 1}, {"surge": 2, "unavailable": 1}])
@pytest.mark.parametrize("change", NEW)
def test_one_group_goes_first_and_the_rest_follows_when_it_has_passed(limits: dict[str, int], change: str) -> None:
    world = settled(**limits)
    world.change(**NEW[change])
    status = world.settle().status
    new = version(world.desired.revision, world.desired.model_revision)
    assert versions(world).count(new) == 1
    assert len(versions(world)) == 3
    status = say(world, GOOD).status
    assert versions(world).count(new) == 1, "in this pass it has only passed"
    assert condition(status, ConditionType.PROGRESSING)[0] == "True"
    world.settle()
    assert versions(world) == [new] * 3
    assert world.memory.good == world.desired.rendering.key


@pytest.mark.parametrize("change", NEW)
def test_a_canary_that_fails_goes_back_alone_and_the_status_has_the_numbers(change: str) -> None:
    world = settled()
    before = set(world.pods)
    world.change(**NEW[change])
    world.settle()
    kept = {name for name in world.pods if name in before}
    told = [*say(world, BAD).news, *news_until_settled(world)]
    status = world.settle().status
    assert versions(world) == [version("rev1", "model1")] * 3
    assert kept <= set(world.pods), "no other group was touched"
    reason, message = condition(status, ConditionType.STALLED)[1:]
    assert reason == Reason.ROLLED_BACK
    assert "the canary failed too many requests (1 % are allowed): " in message
    assert "500 requests (others: 500), 20.0 % failed (others: 0.0 %)" in message
    assert [news.event for news in told if news.group is None] == [Event.CANARY_FAILED]
    world.advance(10_000)
    world.settle()
    assert versions(world) == [version("rev1", "model1")] * 3, "it stays given up"
    world.change(revision="rev3", model_revision="model1")
    world.figures = None
    world.settle()
    assert versions(world).count("rev3/model1") == 1, "another change is another canary"


def test_too_few_requests_hold_and_the_progress_deadline_does_not_run() -> None:
    world = settled()
    world.change(revision="rev2")
    world.settle()
    say(world, served(60))
    for _ in range(20):
        status = world.step().status
        world.advance(world.desired.rollout.deadline_s)
    assert versions(world).count("rev2/model1") == 1
    assert condition(status, ConditionType.PROGRESSING)[:2] == ("True", Reason.CANARY_ANALYSIS)
    told = condition(status, ConditionType.PROGRESSING)[2]
    assert told.startswith("the canary holds until 100 requests are counted: 60 requests (others: 500), 0.0 % failed")
    assert condition(status, ConditionType.STALLED)[0] == "False"


def test_figures_from_before_the_canary_served_say_nothing() -> None:
    world = settled()
    world.figures = Figures(world.now - 1, world.now - 1, {"rev2/model1": BAD})
    world.change(revision="rev2")
    world.settle()
    world.advance(10 * CANARY.analysis_s)
    assert condition(world.settle().status, ConditionType.PROGRESSING)[2] == (
        "the canary holds: the routers' figures are being read"
    )


def test_another_operator_judges_by_its_own_figures_and_remembers_what_was_judged() -> None:
    world = settled()
    world.change(revision="rev2")
    world.settle()
    world.figures = None
    world.memory = msgspec.json.decode(msgspec.json.encode(world.memory), type=Memory)
    world.advance(10 * CANARY.analysis_s)
    world.settle()
    assert versions(world).count("rev2/model1") == 1, "nothing was counted"
    say(world, BAD)
    world.memory = msgspec.json.decode(msgspec.json.encode(world.memory), type=Memory)
    world.figures = None
    assert condition(world.settle().status, ConditionType.STALLED)[1] == Reason.ROLLED_BACK
    assert versions(world) == ["rev1/model1"] * 3


@pytest.mark.parametrize(("surge", "beside"), [(1, 2), (0, 1)])
def test_a_single_group_has_its_canary_beside_it_where_there_is_room(surge: int, beside: int) -> None:
    world = settled(replicas=1, surge=surge, unavailable=1 - surge)
    world.change(revision="rev2")
    world.settle()
    assert len(versions(world)) == beside
    assert world.memory.good != world.desired.rendering.key
    say(world, BAD)
    world.settle()
    assert versions(world) == ["rev1/model1"]
    world.change(revision="rev3")
    world.figures = None
    world.settle()
    say(world, GOOD)
    world.settle()
    assert versions(world) == ["rev3/model1"]


@pytest.mark.parametrize(("replicas", "groups", "new", "old"), [(4, 2, 2, 2), (3, 5, 3, 1), (2, 1, 1, 1)])
def test_as_many_groups_go_first_as_are_asked_for_and_one_stays(replicas: int, groups: int, new: int, old: int) -> None:
    world = settled(replicas=replicas, groups=groups)
    world.change(revision="rev2")
    world.settle()
    assert versions(world) == ["rev1/model1"] * old + ["rev2/model1"] * new


def test_a_partition_holds_more_back_than_the_canary_and_is_kept_when_it_has_passed() -> None:
    world = settled(replicas=3)
    policy = replace(world.desired.rollout, partition=2, canary=replace(CANARY, groups=2))
    world.change(revision="rev2", rollout=policy)
    world.settle()
    say(world, GOOD)
    world.settle()
    assert versions(world) == ["rev1/model1", "rev1/model1", "rev2/model1"]


@pytest.mark.parametrize("change", NEW)
def test_groups_that_come_during_the_trial_are_as_the_others_were(change: str) -> None:
    world = settled(replicas=2)
    world.change(**NEW[change])
    world.settle()
    new = version(world.desired.revision, world.desired.model_revision)
    world.change(replicas=4)
    world.settle()
    assert versions(world).count(new) == 1
    old = next(pod.group for pod in world.pods.values() if version(pod.revision, pod.model_revision) != new)
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, node_leaving=pod.group == old)
    world.settle()
    assert old not in revisions(world)
    assert versions(world).count(new) == 1, "to leave a node is to jump no rollout"
    say(world, GOOD)
    world.settle()
    assert versions(world) == [new] * 4


def test_a_group_of_before_that_dies_during_the_trial_comes_back_as_it_was() -> None:
    world = settled(replicas=2)
    world.change(model_revision="model2")
    world.settle()
    old = next(index for index in (0, 1) if index not in world.served)
    for name in [pod.name for pod in world.pods.values() if pod.group == old]:
        world.vanish(name)
    world.settle()
    assert versions(world) == ["rev1/model1", "rev1/model2"]


def test_pause_leaves_a_failed_canary_where_it_is_and_sends_it_nothing() -> None:
    world = settled(replicas=3)
    world.change(revision="rev2", rollout=replace(world.desired.rollout, roll_back=False))
    status = world.settle().status
    assert weights(world.desired, world.memory, status) == {"rev1/model1": 2, "rev2/model1": 1}
    say(world, BAD)
    status = world.settle().status
    assert versions(world).count("rev2/model1") == 1
    assert condition(status, ConditionType.STALLED)[1] == Reason.CANARY_FAILED
    assert weights(world.desired, world.memory, status) == {"rev1/model1": 2}


def test_requests_are_shared_by_groups_during_the_trial_only() -> None:
    world = settled(replicas=4)
    assert weights(world.desired, world.memory, world.settle().status) == {}
    world.change(model_revision="model2")
    status = world.settle().status
    assert weights(world.desired, world.memory, status) == {"rev1/model1": 3, "rev1/model2": 1}
    say(world, GOOD)
    assert weights(world.desired, world.memory, world.settle().status) == {}


def test_a_canary_that_never_serves_is_taken_back_by_the_progress_deadline() -> None:
    world = settled()
    world.broken.add("rev2")
    world.change(revision="rev2")
    for _ in range(10):
        world.step()
    assert trial_of(world.desired, world.memory) is None
    world.advance(world.desired.rollout.deadline_s)
    for _ in range(20):
        status = world.step().status
        world.advance(1)
    assert condition(status, ConditionType.STALLED)[1] == Reason.ROLLED_BACK
    assert versions(world) == ["rev1/model1"] * 3


def test_the_first_version_has_no_judge_and_the_way_back_needs_none() -> None:
    world = settled()
    assert versions(world) == ["rev1/model1"] * 3
    world.change(revision="rev2")
    world.settle()
    world.change(revision="rev1")
    world.settle()
    assert versions(world) == ["rev1/model1"] * 3
    assert trial_of(world.desired, world.memory) is None


def test_a_canary_tells_that_it_began_and_that_it_passed_once_each() -> None:
    world = settled()
    world.change(revision="rev2")
    started = [news for news in news_until_settled(world) if news.group is None]
    assert [news.event for news in started] == [Event.CANARY_STARTED]
    told = [*say(world, GOOD).news, *news_until_settled(world)]
    passed = [news for news in told if news.group is None]
    assert [news.event for news in passed] == [Event.CANARY_PASSED]
    assert "500 requests" in passed[0].message


def test_a_paused_deployment_is_not_judged() -> None:
    world = settled()
    world.change(revision="rev2")
    world.settle()
    world.desired = replace(world.desired, paused=True)
    say(world, BAD)
    assert world.memory.progress is not None
    assert not world.memory.progress.failed
    assert held_back(world.desired, world.memory).rollout.trial == 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["kill", "vanish", "cordon", "uncordon"]), st.integers(0, 5)),
        st.tuples(st.just("scale"), st.integers(2, 5)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
    ),
    max_size=8,
)


@given(EVENTS, st.sampled_from(sorted(NEW)), st.sampled_from([(1, 0), (0, 1), (2, 1)]))
@example([("scale", 4), ("kill", 0), ("vanish", 0), ("cordon", 5)], "checkpoint", (1, 0))
@settings(max_examples=40)
def test_nothing_that_happens_brings_more_groups_than_were_asked_for_before_they_are_judged(
    events: list[tuple[str, int]], change: str, limits: tuple[int, int]
) -> None:
    world = settled(3, *limits)
    world.change(**NEW[change])
    new = version(world.desired.revision, world.desired.model_revision)

    def canaries() -> set[int]:
        """The groups of the new version that are to stay where they are."""
        leaders = [pod for pod in world.pods.values() if pod.stage == 0 and not pod.node_leaving]
        named = {pod.group: version(pod.revision, world.served.get(pod.group, pod.model_revision)) for pod in leaders}
        return {group for group, name in named.items() if name == new}

    for what, number in events:
        happen(world, what, number)
        for _ in range(4):
            world.step()
            assert len(canaries()) <= 1
    for name, pod in list(world.pods.items()):
        world.pods[name] = replace(pod, node_leaving=False)
    world.settle()
    assert len(canaries()) == 1
    assert len(versions(world)) == world.desired.replicas


def happen(world: World, what: str, number: int) -> None:
    """Let one thing happen, to the pod or group of this number where there is one."""
    names = sorted(world.pods)
    if what == "scale":
        world.change(replicas=number)
    elif what == "wait":
        world.advance(number)
    elif names:
        pod = world.pods[names[number % len(names)]]
        if what == "kill":
            world.kill(pod.name)
        elif what == "vanish":
            world.vanish(pod.name)
        else:
            for name in [one.name for one in world.pods.values() if one.group == pod.group]:
                world.pods[name] = replace(world.pods[name], node_leaving=what == "cordon")
