"""Losses that come together, again and again, or into another recovery: each class ends in one serving epoch.

Three stages of one scripted rank; nothing is decided by time, so only sockets and process exits can tell.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from bireme.wire.state import StateDocument
from tests.supervisor.pods import NOTHING_BY_TIME, Pod, Pods, pids, rank

Group = list[Pod]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Whatever a test breaks serves again at its end."""
    pods = Pods(tmp_path_factory.mktemp("three"))
    yield [pods.make(stage, stages=3, tensor=1).start(**NOTHING_BY_TIME) for stage in range(3)]
    pods.end()


def _start(*lost: Pod) -> None:
    for pod in lost:
        pod.start(**NOTHING_BY_TIME)


def _present(document: StateDocument, stage: int) -> bool:
    return any(entry.stage == stage and entry.ranks for entry in document.stages)


async def test_two_whole_stages_lost_at_once_leave_the_third_its_weights(group: Group) -> None:
    before = await group[0].until_serving()
    group[1].kill()
    group[2].kill()
    lost = await group[0].until(lambda d: not (d.ready or _present(d, 1) or _present(d, 2)))
    assert (lost.state, lost.reason) == ("Recovering", "StageLost")
    _start(group[2], group[1])
    after = await group[0].until_serving(above=before.epoch)
    assert pids(after, 0) == pids(before, 0)


async def test_the_leader_and_a_stage_lost_at_once_leave_the_third_its_weights(group: Group) -> None:
    before = await group[0].until_serving()
    group[0].kill()
    group[1].kill()
    await group[2].until(lambda document: not document.ready)
    _start(group[0], group[1])
    after = await group[0].until_serving(above=before.epoch)
    assert pids(after, 2) == pids(before, 2)


async def test_a_stage_that_flaps_costs_the_others_nothing_but_time(group: Group) -> None:
    before = await group[0].until_serving()
    for _ in range(4):
        group[1].kill()
        await group[0].until(lambda document: not _present(document, 1))
        _start(group[1])
        await group[0].until(lambda document: _present(document, 1))
    after = await group[0].until_serving(above=before.epoch)
    assert (pids(after, 0), pids(after, 2)) == (pids(before, 0), pids(before, 2))


async def test_stages_lost_while_another_loads_are_waited_for_together(group: Group) -> None:
    before = await group[0].until_serving()
    slow = group[1].state_dir / "slow-0"
    slow.touch()
    os.kill(rank(before, 1, 0).pid, signal.SIGKILL)
    waits = await group[0].until(lambda document: "stage 1 to load" in document.message)
    assert waits.reason == "RankLost"
    group[2].kill()
    await group[0].until(lambda document: "stage 2 to join" in document.message)
    group[0].kill()
    _start(group[2], group[0])
    await group[0].until(lambda document: rank(document, 0, 0).loads == 1 and "stage 1 to load" in document.message)
    slow.unlink()
    after = await group[0].until_serving(above=before.epoch)
    assert rank(after, 1, 0).loads == rank(before, 1, 0).loads + 1


async def test_losses_during_a_recovery_and_during_the_recovery_from_those_converge(group: Group) -> None:
    before = await group[0].until_serving()
    group[1].kill()
    during = await group[0].until(lambda document: not document.ready)
    os.kill(rank(during, 0, 0).pid, signal.SIGKILL)
    await group[0].until(lambda document: rank(document, 0, 0).pid != rank(during, 0, 0).pid)
    group[0].kill()
    _start(group[1])
    group[2].kill()
    _start(group[0], group[2])
    after = await group[0].until_serving(above=before.epoch)
    assert {stage.stage for stage in after.stages if stage.ranks[0].alive} == {0, 1, 2}
