"""Any order of losses and returns, at any moment, ends in one serving epoch that is higher than all before."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.supervisor.world import World

Move = Callable[[World], None]

_stage = st.integers(0, 2)
_rank = st.integers(0, 1)

MOVES = st.one_of(
    st.builds(lambda s: lambda w: w.deliver_up(s % w.stages), _stage),
    st.builds(lambda s: lambda w: w.deliver_down(s % w.stages), _stage),
    st.builds(lambda s, r: lambda w: w.rank_step(s % w.stages, r % w.tensor), _stage, _rank),
    st.builds(lambda s, r: lambda w: w.kill_rank(s % w.stages, r % w.tensor), _stage, _rank),
    st.builds(lambda s, r: lambda w: w.start_rank(s % w.stages, r % w.tensor), _stage, _rank),
    st.builds(lambda s, r: lambda w: w.silence(s % w.stages, r % w.tensor), _stage, _rank),
    st.builds(lambda s, r: lambda w: w.hear(s % w.stages, r % w.tensor), _stage, _rank),
    st.builds(lambda s: lambda w: w.cut(s % w.stages), _stage),
    st.builds(lambda s: lambda w: w.dial(s % w.stages), _stage),
    st.builds(lambda s, f: lambda w: w.restart_stage(s % w.stages or w.stages - 1, replaced=f), _stage, st.booleans()),
    st.builds(lambda f: lambda w: w.restart_leader(replaced=f), st.booleans()),
    st.builds(lambda n: lambda w: w.reload(n), st.integers(0, 3)),
    st.builds(lambda n: lambda w: w.bad.add(str(n)), st.integers(2, 9)),
    st.just(lambda w: w.kill_coordinator()),
    st.just(lambda w: w.start_coordinator()),
    st.just(lambda w: w.coordinator_step()),
    st.just(lambda w: w.notice_cut()),
    st.builds(lambda n: lambda w: w.settle(n), st.integers(1, 12)),
    st.builds(lambda t: lambda w: w.tick(t), st.floats(0.0, 3.0)),
)


@settings(max_examples=250, deadline=None)
@given(stages=st.integers(2, 3), tensor=st.integers(1, 2), moves=st.lists(MOVES, max_size=60))
def test_any_order_of_losses_and_returns_converges(stages: int, tensor: int, moves: list[Move]) -> None:
    world = World(stages, tensor)
    for move in moves:
        move(world)
        world.check()
    world.settle()
    world.check()
    assert world.serving, f"{world.leader.phase} {world.leader.standing}"
    assert world.leader.epoch == world.begun[-1] == world.serves[-1]


@settings(max_examples=250, deadline=None)
@given(stages=st.integers(2, 3), tensor=st.integers(1, 2), moves=st.lists(MOVES, max_size=40))
def test_whatever_happens_during_a_reload_all_ranks_end_on_the_same_weights(
    stages: int, tensor: int, moves: list[Move]
) -> None:
    world = World(stages, tensor)
    world.settle()
    world.reload(1)
    for move in moves:
        move(world)
        world.check()
    world.settle()
    world.bad.clear()
    before = int(world.leader.checkpoint.model_revision)
    assert world.reload(1), world.leader.reloading.state
    world.settle()
    world.check()
    assert world.serving
    assert int(world.served[-1].model_revision) == before + 1
    assert {node.file.model_revision for node in world.nodes} == {str(before + 1)}


@pytest.mark.parametrize("rounds", range(16))
def test_a_loss_at_every_moment_of_a_start_is_recovered(rounds: int) -> None:
    for lose in (
        lambda w: w.kill_rank(1, 0),
        lambda w: w.cut(1),
        lambda w: w.restart_leader(replaced=False),
        lambda w: w.kill_coordinator(),
        lambda w: (w.restart_stage(1, replaced=True), w.kill_rank(0, 1)),
    ):
        world = World(2, 2)
        world.settle(rounds)
        lose(world)
        world.check()
        world.settle()
        assert world.serving


def test_a_group_that_flaps_waits_longer_each_time_but_recovers() -> None:
    world = World(2, 1)
    world.settle()
    for _ in range(6):
        world.kill_rank(1, 0)
        world.settle(20)
    begun = len(world.begun)
    world.kill_rank(1, 0)
    world.settle(8)
    assert len(world.begun) == begun, "the next forming must wait"
    world.settle(40)
    assert world.serving
