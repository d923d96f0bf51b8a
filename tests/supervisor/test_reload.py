"""A hot reload step by step in the pure machines: what is lost at each of its moments, and what serves afterwards."""

import pytest

from tests.supervisor.world import World


@pytest.fixture
def world() -> World:
    world = World(2, 2)
    world.settle()
    assert world.serving
    return world


def rounds_until(world: World, phase: str) -> None:
    """Let messages travel one round at a time until the reload is there."""
    for _ in range(20):
        if world.leader.reloading.state.phase == phase:
            return
        world.settle(1)
    raise AssertionError(f"never {phase}: {world.leader.reloading.state}")


def revision(world: World) -> str:
    assert world.serving
    return world.served[-1].model_revision


def test_a_reload_keeps_the_epoch_and_is_written_down_by_every_stage(world: World) -> None:
    epoch = world.leader.epoch
    assert world.reload(1)
    world.settle()
    assert (revision(world), world.leader.epoch) == ("2", epoch)
    assert {(node.file.model_revision, node.file.generation) for node in world.nodes} == {("2", 1)}
    assert world.leader.reloading.state.phase == "Idle"


def test_a_checkpoint_that_one_rank_can_not_verify_is_refused_with_its_words(world: World) -> None:
    world.bad.add("2")
    assert world.reload(1)
    world.settle()
    reload = world.leader.reloading.state
    assert (reload.phase, reload.model_revision, reload.final) == ("Failed", "2", True)
    assert "truncated" in reload.message
    assert revision(world) == "1"
    assert not any(model.staged for node in world.nodes for model in node.ranks)


def test_a_rank_lost_while_staging_leaves_the_old_weights(world: World) -> None:
    assert world.reload(1)
    world.kill_rank(1, 0)
    world.settle()
    reload = world.leader.reloading.state
    assert (reload.phase, reload.final) == ("Failed", False)
    assert "the old weights go on" in reload.message
    assert revision(world) == "1"
    assert world.reload(1)
    world.settle()
    assert revision(world) == "2"


@pytest.mark.parametrize("lose", ["rank", "stage", "leader", "coordinator"])
def test_what_is_lost_after_the_decision_comes_back_on_the_new_weights(world: World, lose: str) -> None:
    assert world.reload(1)
    rounds_until(world, "Committing")
    {
        "rank": lambda: world.kill_rank(1, 1),
        "stage": lambda: world.restart_stage(1, replaced=False),
        "leader": lambda: world.restart_leader(replaced=False),
        "coordinator": world.kill_coordinator,
    }[lose]()
    world.settle()
    assert revision(world) == "2"


@pytest.mark.parametrize("rounds", range(10))
@pytest.mark.parametrize("lost", [(0, 1), (1,), (1, 1)])
def test_stages_lost_at_any_moment_of_a_reload_end_on_one_checkpoint(
    world: World, rounds: int, lost: tuple[int]
) -> None:
    assert world.reload(1)
    world.settle(rounds)
    for stage in lost:
        world.restart_stage(stage, replaced=False) if stage else world.restart_leader(replaced=False)
        world.check()
        world.settle(1)
    world.settle()
    assert {node.file.model_revision for node in world.nodes} == {revision(world)}


def test_a_leader_that_lost_its_file_learns_of_the_commit_from_a_stage(world: World) -> None:
    assert world.reload(1)
    world.settle()
    world.served.append(world.served[0])  # the operator has not heard of it and orders the old checkpoint
    world.restart_leader(replaced=True)
    world.served.pop()
    world.settle()
    assert revision(world) == "2"


def test_a_restarted_stage_never_returns_to_the_superseded_checkpoint(world: World) -> None:
    assert world.reload(1)
    world.settle()
    world.restart_stage(1, replaced=False)
    assert world.nodes[1].machine.checkpoint.model_revision == "2"
    world.settle()
    assert revision(world) == "2"


def test_a_second_reload_waits_for_the_first(world: World) -> None:
    assert world.reload(1)
    assert world.reload(1), "the same wish again is no second one"
    assert not world.reload(2)
    world.settle()
    assert revision(world) == "2"
    assert world.reload(1)
    world.settle()
    assert revision(world) == "3"


def test_to_ask_for_what_is_served_gives_a_reload_up(world: World) -> None:
    assert world.reload(1)
    assert world.reload(0)
    world.settle()
    assert (revision(world), world.leader.reloading.state.phase) == ("1", "Idle")
    assert not any(model.staged for node in world.nodes for model in node.ranks)


def test_a_group_that_recovers_refuses_and_says_to_post_again(world: World) -> None:
    world.kill_rank(1, 0)
    world.deliver_up(1)
    assert not world.reload(1)
    world.settle()
    assert world.reload(1)


def test_a_stage_that_does_not_commit_ends_the_epoch_and_goes_forward(world: World) -> None:
    assert world.reload(1)
    rounds_until(world, "Committing")
    for model in world.nodes[1].ranks:
        model.inbox.clear()
    epoch = world.leader.epoch
    world.tick(6.0)
    world.settle()
    assert world.leader.epoch > epoch
    assert revision(world) == "2"
