"""A model revision that has served keeps to its weights; the status says what to write instead."""

from dataclasses import replace

import msgspec

from bireme.names import ConditionType, Env, Event, GroupState, Reason
from bireme.wire.state import ReloadState
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.naming import bound, names_of
from bireme_operator.plan.plan import Plan
from tests.planner.world import World, wanted

ONE = {Env.MODEL_PATH: "/models/model1"}


def settled(replicas: int = 2) -> World:
    world = World(wanted(replicas=replicas, environment=dict(ONE)))
    world.settle()
    world.created.clear()
    return world


def wish(world: World, name: str, path: str, **changes: object) -> Plan:
    world.change(model_revision=name, environment={**ONE, Env.MODEL_PATH: path}, **changes)
    for _ in range(6):
        result = world.step()
    return result


def stalled(result: Plan) -> tuple[str, str]:
    found = next(one for one in result.status.conditions if one.type == ConditionType.STALLED)
    return (found.reason, found.message) if found.status == "True" else ("", "")


def told(world: World, passes: int = 6) -> list[tuple[Event, int | None, str]]:
    return [(one.event, one.group, one.message) for _ in range(passes) for one in world.step().news]


def test_a_name_that_serves_is_not_given_to_other_weights_and_the_status_says_so() -> None:
    world = settled()
    result = wish(world, "model1", "/models/other")
    reason, message = stalled(result)
    assert reason == Reason.NAME_TAKEN
    assert message == (
        "model revision model1 is the name of the weights at /models/model1, which have served under it: "
        "give those at /models/other another spec.model.revision"
    )
    assert not world.reloads
    assert [group.state for group in result.status.groups] == [GroupState.SERVING] * 2


def test_what_is_made_anew_meanwhile_has_the_weights_that_the_name_stands_for() -> None:
    world = settled()
    wish(world, "model1", "/models/other", replicas=3)
    for stage in (0, 1):
        world.vanish(world.pod(0, stage).name)
    world.settle()
    assert len(world.created) == 4
    assert {made.environment[Env.MODEL_PATH] for made in world.created} == {"/models/model1"}


def test_a_wish_that_is_put_right_is_carried_out() -> None:
    world = settled()
    wish(world, "model1", "/models/other")
    result = wish(world, "model2", "/models/other")
    assert stalled(result) == ("", "")
    assert result.status.model_revision == "model2"
    assert {(reload.request.source, reload.request.model_revision) for reload in world.reloads} == {
        ("/models/other", "model2")
    }


def test_a_name_under_which_nothing_came_to_serve_is_free() -> None:
    world = settled()
    world.bad.add("model2")
    assert wish(world, "model2", "/models/truncated").status.groups[0].reason == Reason.RELOAD_FAILED
    world.bad.clear()
    world.reloads.clear()
    result = wish(world, "model2", "/models/whole")
    assert (stalled(result), result.status.model_revision) == (("", ""), "model2")
    assert {reload.request.source for reload in world.reloads} == {"/models/whole"}


def test_a_name_that_served_earlier_is_not_free() -> None:
    world = settled()
    wish(world, "model2", "/models/model2")
    result = wish(world, "model1", "/models/other")
    assert stalled(result)[0] == Reason.NAME_TAKEN
    assert "/models/model1" in stalled(result)[1]
    back = wish(world, "model1", "/models/model1")
    assert (stalled(back), back.status.model_revision) == (("", ""), "model1")


def test_a_name_that_is_being_loaded_from_elsewhere_is_told_to_the_group() -> None:
    world = settled(replicas=1)
    world.change(model_revision="model2", environment={**ONE, Env.MODEL_PATH: "/models/b"})
    world.failed[0] = ReloadState("Staging", "model2", source="/models/a")
    world.step()
    assert [reload.request.source for reload in world.reloads] == ["/models/b"]


def test_pods_of_another_rendering_may_have_the_weights_elsewhere() -> None:
    world = settled()
    world.change(revision="rev2", environment={**ONE, Env.MODEL_PATH: "/volume/model1"})
    result = world.settle()
    assert stalled(result) == ("", "")
    assert {made.environment[Env.MODEL_PATH] for made in world.created} == {"/volume/model1"}


def test_a_rendering_that_gives_a_name_away_is_never_gone_back_to() -> None:
    world = settled()
    wish(world, "model1", "/models/other")
    world.change(replicas=2)
    kept, _ = bound(world.desired, world.memory)
    assert {made.source for made in kept.history.values()} == {"/models/model1"}


def test_names_are_remembered_in_the_status_and_not_without_end() -> None:
    world = settled(replicas=1)
    for number in range(2, 40):
        wish(world, f"model{number}", f"/models/{number}")
    memory = msgspec.json.decode(msgspec.json.encode(world.memory), type=Memory)
    names = names_of(memory, "rev1")
    assert len(names) == 32
    assert names["model39"] == "/models/39"
    assert not world.settle().actions
    assert world.memory.sources == memory.sources


def test_a_path_that_is_put_right_before_anything_served_is_tried_under_the_same_name() -> None:
    world = World(wanted(replicas=1, environment={Env.MODEL_PATH: "/models/typo"}))
    world.mute.add(0)
    world.step()
    world.kill(world.pod(0, 0).name, 65, "/models/typo does not exist")
    world.advance(1)
    assert world.step().status.groups[0].state is GroupState.FAILED
    world.mute.clear()
    world.created.clear()
    world.change(environment=dict(ONE))
    assert world.settle().status.groups[0].state is GroupState.SERVING
    assert world.created[-1].environment[Env.MODEL_PATH] == "/models/model1"


def test_a_group_that_is_lost_whole_after_a_failed_reload_comes_back_as_it_was() -> None:
    world = settled()
    world.bad.add("model2")
    wish(world, "model2", "/models/truncated")
    world.reloads.clear()
    world.failed.clear()  # the new leader knows nothing of it
    for stage in (0, 1):
        world.vanish(world.pod(0, stage).name)
    result = world.settle()
    assert {(made.model_revision, made.environment[Env.MODEL_PATH]) for made in world.created} == {
        ("model1", "/models/model1")
    }
    assert not world.reloads, "nobody has asked again"
    assert result.status.groups[0].reason == Reason.RELOAD_FAILED


def test_a_reload_is_told_once_per_group_and_only_when_it_has_come_about() -> None:
    world = settled()
    world.change(model_revision="model2", environment={**ONE, Env.MODEL_PATH: "/models/model2"})
    assert told(world) == [
        (Event.GROUP_RELOADED, 0, "model revision model2"),
        (Event.GROUP_RELOADED, 1, "model revision model2"),
    ]


def test_a_reload_that_fails_is_told_as_that_however_far_it_came() -> None:
    world = settled(replicas=1)
    world.change(model_revision="model2", environment={**ONE, Env.MODEL_PATH: "/models/model2"})
    generation = world.desired.generation
    world.failed[0] = ReloadState("Staging", "model2", source="/models/model2", wish=generation)
    assert told(world, 2) == []
    world.failed[0] = ReloadState("Failed", "model2", "stage 1: truncated", "/models/model2", True, generation)
    assert told(world) == [(Event.GROUP_RELOAD_FAILED, 0, "model revision model2: stage 1: truncated")]


def test_a_loss_on_the_way_is_told_as_a_loss() -> None:
    world = settled(replicas=1)
    world.failed[0] = ReloadState("Staging", "model1")
    world.step()
    pod = world.pod(0, 1)
    world.pods[pod.name] = replace(pod, told_leader=0)
    [event] = told(world, 1)
    assert event[0] == Event.GROUP_LOST_PART
