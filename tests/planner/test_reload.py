"""A change of only the checkpoint is made in place, group by group, and asked for until the groups agree."""

from dataclasses import replace

from bireme.names import Env, GroupState, Reason
from bireme.wire.state import ReloadState
from tests.planner.world import World, wanted


def settled(replicas: int = 2) -> World:
    world = World(wanted(replicas=replicas))
    for _ in range(6):
        world.step()
    world.created.clear()
    return world


def wish(world: World, revision: str) -> None:
    desired = world.desired
    environment = {**desired.environment, Env.MODEL_PATH: f"/models/{revision}", Env.MODEL_REVISION: revision}
    world.desired = replace(
        desired, model_revision=revision, environment=environment, generation=desired.generation + 1
    )


def test_the_groups_reload_one_after_the_other_and_no_pod_is_made_anew() -> None:
    world = settled()
    wish(world, "model2")
    for _ in range(6):
        assert world.step().status.ready_replicas == 2
    assert [(reload.group, reload.request.source) for reload in world.reloads] == [
        (0, "/models/model2"),
        (1, "/models/model2"),
    ]
    status = world.step().status
    assert (status.updated_replicas, status.model_revision) == (2, "model2")
    assert not world.created
    assert not world.deleted


def test_a_checkpoint_that_the_first_group_refuses_is_not_posted_again_until_the_wish_is_a_new_one() -> None:
    world = settled()
    world.bad.add("model2")
    wish(world, "model2")
    for _ in range(6):
        status = world.step().status
    assert [reload.group for reload in world.reloads] == [0]
    assert [group.state for group in status.groups] == [GroupState.SERVING] * 2
    assert status.groups[0].reason == Reason.RELOAD_FAILED
    assert "truncated" in status.groups[0].message
    world.bad.clear()
    wish(world, "model2")
    for _ in range(6):
        world.step()
    assert world.step().status.model_revision == "model2"


def test_a_reload_that_a_loss_has_ended_is_posted_again() -> None:
    world = settled(replicas=1)
    wish(world, "model2")
    world.failed[0] = ReloadState("Failed", "model2", "given up, the old weights go on", "", False, 2)
    world.step()
    assert len(world.reloads) == 1


def test_nothing_is_posted_while_a_group_does_not_serve() -> None:
    world = settled()
    world.mute.add(1)
    wish(world, "model2")
    world.step()
    assert not world.reloads


def test_a_wish_that_changes_on_the_way_is_told_to_the_group_that_is_under_way() -> None:
    world = settled(replicas=1)
    world.failed[0] = ReloadState("Staging", "model2")
    status = world.step().status
    assert [reload.request.model_revision for reload in world.reloads] == ["model1"]
    assert (status.groups[0].state, status.groups[0].reason) == (GroupState.RELOADING, Reason.STAGING)


def test_a_lost_stage_is_made_of_what_its_peers_serve() -> None:
    world = settled(replicas=1)
    world.bad.add("model2")
    wish(world, "model2")
    world.step()
    world.vanish(world.pod(0, 1).name)
    for _ in range(4):
        world.step()
    [made] = world.created
    assert (made.model_revision, made.environment[Env.MODEL_PATH]) == ("model1", "/models/model1")


def test_a_group_that_never_served_is_rolled_instead() -> None:
    world = World(wanted(replicas=1))
    world.mute.add(0)
    world.step()
    wish(world, "model2")
    for _ in range(6):
        world.step()
    assert world.created[-1].model_revision == "model2"
    assert not world.reloads
