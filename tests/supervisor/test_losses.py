"""Real supervisors lose ranks, stages, leaders and helpers; the group notices at once and serves again, higher.

The limits of time are out of reach in most of these tests, so only sockets and process exits can tell.
"""

import asyncio
import contextlib
import os
import signal

import pytest

from bireme.wire.control import EPOCH_SHIFT
from bireme.wire.state import StateDocument
from tests.supervisor.pods import NOTHING_BY_TIME, PATIENCE_S, Pod, Pods, children, pids, rank, running


async def test_a_group_of_two_stages_serves_and_says_so_on_every_stage(lasting_group: tuple[Pod, Pod]) -> None:
    leader, other = lasting_group
    document = await leader.until_serving()
    assert [len(stage.ranks) for stage in document.stages] == [2, 2]
    assert all(entry.alive and entry.loads == 1 for stage in document.stages for entry in stage.ranks)
    assert document.epoch == (1 << EPOCH_SHIFT) + 1
    mirrored = await other.until_serving()
    assert mirrored.epoch == document.epoch
    assert (await leader.get("/readyz"))[0] == (await other.get("/readyz"))[0] == 200


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_rank_killed_while_serving_is_noticed_by_its_end_and_replaced_alone(
    lasting_group: tuple[Pod, Pod], stage: int
) -> None:
    group = lasting_group
    before = await group[0].until_serving()
    victim = rank(before, stage, 1)
    words = f"stage {stage}: rank 1: was ended by SIGKILL"
    async with group[0].listened() as listener:
        os.kill(victim.pid, signal.SIGKILL)
        lost = await listener.until(lambda document: not document.ready)
        assert (lost.state, lost.reason) == ("Recovering", "RankLost")
        if words not in lost.message:
            await listener.until(lambda document: words in document.message)
    after = await group[0].until_serving(above=before.epoch)
    assert after.epoch > before.epoch
    assert pids(after, 1 - stage) == pids(before, 1 - stage), "the other stage kept its processes and weights"
    assert pids(after, stage)[0] == pids(before, stage)[0]
    assert rank(after, stage, 1).pid != victim.pid
    assert rank(after, stage, 1).loads == victim.loads + 1
    await group[1].until_serving(above=before.epoch)


async def test_a_rank_killed_while_the_group_is_still_apart_is_replaced_too(pods: Pods) -> None:
    leader = pods.make(0).start(**NOTHING_BY_TIME)
    before = await leader.until(lambda document: document.reason == "Rendezvous" and pids(document, 0)[0][1] == 1)
    assert "stage 1 to join" in before.message
    os.kill(rank(before, 0, 0).pid, signal.SIGKILL)
    await leader.until(lambda document: rank(document, 0, 0).loads == 2)
    pods.make(1).start(**NOTHING_BY_TIME)
    await leader.until_serving()


async def test_a_stage_killed_and_started_again_joins_the_survivors(lasting_group: tuple[Pod, Pod]) -> None:
    leader, other = lasting_group
    before = await leader.until_serving()
    other.kill()
    lost = await leader.until(lambda document: document.reason == "StageLost")
    assert lost.state == "Recovering"
    other.start(**NOTHING_BY_TIME)
    after = await leader.until_serving(above=before.epoch)
    assert pids(after, 0) == pids(before, 0)
    assert all(pid not in dict(pids(before, 1)) for pid, _ in pids(after, 1))


async def test_a_leader_killed_and_started_again_finds_its_stages_with_their_weights(
    lasting_group: tuple[Pod, Pod],
) -> None:
    leader, other = lasting_group
    before = await leader.until_serving()
    leader.kill()
    lost = await other.until(lambda document: not document.ready)
    assert (lost.state, lost.reason) == ("Recovering", "LeaderLost")
    slow = leader.state_dir / "slow-0"
    slow.touch()
    leader.start(**NOTHING_BY_TIME)
    again = await leader.until(lambda document: True)
    assert (again.state, again.reason) == ("Recovering", "LeaderLost")
    slow.unlink()
    after = await leader.until_serving(above=before.epoch)
    assert pids(after, 1) == pids(before, 1)


async def test_a_lost_coordinator_costs_an_epoch_and_no_weights(lasting_group: tuple[Pod, Pod]) -> None:
    leader, _ = lasting_group
    before = await leader.until_serving()
    async with leader.listened() as listener:
        os.kill(_child(leader.pid, "scripted_plan_host"), signal.SIGKILL)
        lost = await listener.until(lambda document: not document.ready)
    assert lost.state == "Recovering"
    after = await leader.until_serving(above=before.epoch)
    assert [pids(after, stage) for stage in (0, 1)] == [pids(before, stage) for stage in (0, 1)]


async def test_a_lost_http_process_costs_readiness_but_no_epoch(lasting_group: tuple[Pod, Pod]) -> None:
    leader, _ = lasting_group
    before = await leader.until_serving()
    async with leader.listened() as listener:
        os.kill(_child(leader.pid, "scripted_http"), signal.SIGKILL)
        lost = await listener.until(lambda document: not document.ready)
    assert "HTTP process 0 was ended by SIGKILL" in lost.message
    assert (await leader.until_serving()).epoch == before.epoch


async def test_a_stopped_rank_is_hung_and_comes_back_with_its_weights(pods: Pods) -> None:
    leader, _ = pods.group(**{**NOTHING_BY_TIME, "silent_s": 1.0})
    before = await leader.until_serving()
    os.kill(rank(before, 1, 0).pid, signal.SIGSTOP)
    lost = await leader.until(lambda document: not document.ready)
    assert (lost.state, lost.reason) == ("Recovering", "Hung")
    os.kill(rank(before, 1, 0).pid, signal.SIGCONT)
    after = await leader.until_serving(above=before.epoch)
    assert [pids(after, stage) for stage in (0, 1)] == [pids(before, stage) for stage in (0, 1)]


async def test_a_rank_that_stays_stopped_is_killed_and_replaced(pods: Pods) -> None:
    leader, _ = pods.group(**{**NOTHING_BY_TIME, "silent_s": 1.0, "silent_kill_s": 4.0})
    before = await leader.until_serving()
    os.kill(rank(before, 1, 0).pid, signal.SIGSTOP)
    after = await leader.until_serving(above=before.epoch)
    assert rank(after, 1, 0).pid != rank(before, 1, 0).pid
    assert pids(after, 0) == pids(before, 0)


async def test_a_rank_with_work_and_no_progress_is_hung(pods: Pods) -> None:
    leader, other = pods.group(**{**NOTHING_BY_TIME, "progress_s": 1.0})
    before = await leader.until_serving()
    stuck = other.state_dir / "stuck-1"
    stuck.touch()
    lost = await leader.until(lambda document: not document.ready)
    assert (lost.state, lost.reason) == ("Recovering", "Hung")
    assert "no step or layer" in lost.message
    stuck.unlink()
    after = await leader.until_serving(above=before.epoch)
    assert pids(after, 1) == pids(before, 1), "the abort freed it, so it kept its weights"


async def test_a_stopped_supervisor_is_lost_and_blames_nobody_when_it_wakes(pods: Pods) -> None:
    limits = {**NOTHING_BY_TIME, "peer_silent_s": 1.2, "silent_s": 1.2, "silent_kill_s": 4.0}
    leader, other = pods.group(**limits)
    before = await leader.until_serving()
    other.signal(signal.SIGSTOP)
    lost = await leader.until(lambda document: not document.ready)
    assert (lost.state, lost.reason) == ("Recovering", "StageLost")
    other.signal(signal.SIGCONT)
    after = await leader.until_serving(above=before.epoch)
    assert pids(after, 1) == pids(before, 1)


async def test_no_child_outlives_a_killed_supervisor(pods: Pods) -> None:
    leader, other = pods.group()
    await leader.until_serving()
    family = await _whole_family(leader, other)
    leader.kill()
    other.kill()
    await _all_gone(family)


async def test_an_idle_group_outlives_every_limit(pods: Pods) -> None:
    # What speaks in time here may get no turn for a second or two; to be idle for longer than 5 s is enough.
    limits = dict.fromkeys(("silent_s", "silent_kill_s", "peer_silent_s"), 5.0) | {"progress_s": 1.2, "ending_s": 1.2}
    leader, _ = pods.group(**limits)
    first = await leader.until_serving()
    seen: list[StateDocument] = []
    async with contextlib.aclosing(leader.watch(0.1)) as documents:
        async for document in documents:
            seen.append(document)
            if len(seen) > 60:
                break
    assert {(document.state, document.epoch, document.boot) for document in seen} == {
        ("Serving", first.epoch, first.boot)
    }
    assert pids(seen[-1], 1) == pids(first, 1)


def _child(pid: int, name: str) -> int:
    [found] = [child for child in children(pid) if name.encode() in _command(child)]
    return found


def _command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


async def _whole_family(leader: Pod, other: Pod) -> list[int]:
    """Two ranks and a spare of each stage, the coordinator and the HTTP process: spares start after the rest."""
    async with asyncio.timeout(PATIENCE_S):
        while len(family := [*children(leader.pid), *children(other.pid)]) < 8:
            await asyncio.sleep(0.01)
    return family


async def _all_gone(family: list[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(running(pid) for pid in family):
            await asyncio.sleep(0.01)
