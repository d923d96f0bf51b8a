"""Epochs begin, end and begin again; groups drain; strangers knock at the ports."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.names import Admission, Env, Exit, Port, Reason
from bireme.wire.errors import WireError
from bireme.wire.frames import open_channel
from bireme.wire.plan import Attach, Result, Sampling, pack_ids, plan_codec
from bireme_worker.coordinator.messages import Begin, Begun, Drain, PlanLost, Serve, Status, Undrain
from tests.support.coordinated_group import TOKEN, Group, running_group
from tests.support.model_rank import reference


async def test_without_a_journal_a_request_is_computed_anew_in_the_next_epoch(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([3], 200, Sampling(seed=1))
        await http.some(key, 5)
        group.finish(5)
        await http.serving(lambda word: not word.serving)
        await group.form(epoch=6)
        assert await http.answer(key) == reference([3], Sampling(seed=1), 200)


async def test_with_a_journal_a_request_is_handed_over_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([3], 500, Sampling(seed=1), journalled=True)
        await http.some(key, 5)
        group.finish(5, Reason.RANK_LOST, "stage 1: rank 0 ended")
        ids, finish = await http.answer(key)
        assert finish == "handover"
        assert http.tokens(key)[-1].message == "RankLost: stage 1: rank 0 ended"
        whole, _ = reference([3], Sampling(seed=1), 500)
        assert ids == whole[: len(ids)]
        await group.form(epoch=6)
        resumed = http.ask([3], 500, Sampling(seed=1), ids, journalled=True)
        await http.some(resumed, 5)
        assert ids + http.ids(resumed) == whole[: len(ids) + len(http.ids(resumed))]


async def test_a_journalled_request_that_never_had_a_slot_is_refused_as_unprocessed(tmp_path: Path) -> None:
    async with running_group(tmp_path, max_running_requests=1) as group:
        await group.form(epoch=5, flow=False)
        http = await group.http()
        running, waiting = (http.ask([key], 50, journalled=True) for key in (1, 2))
        await group.status(lambda status: status.running == status.waiting == 1)
        group.finish(5, retry_s=3.5)
        refused = await http.refusal(waiting)
        assert (refused.code, refused.retry_after_s) == (Admission.NOT_SERVING, 3.5)
        assert await http.answer(running) == ([], "handover")


async def test_after_the_end_of_an_epoch_nothing_is_taken_and_everybody_knows_why(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        group.finish(5, Reason.STAGE_LOST, "stage 1 is gone", 4.0)
        word = await http.serving(lambda word: not word.serving)
        assert (word.reason, word.message, word.retry_after_s) == (Reason.STAGE_LOST, "stage 1 is gone", 4.0)
        refused = await http.refusal(http.ask([1], 1))
        assert (refused.code, refused.message, refused.retry_after_s) == (503, "stage 1 is gone", 4.0)


async def test_a_kept_request_that_no_longer_fits_ends_with_the_numbers(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5, kv_blocks=64)
        http = await group.http()
        key = http.ask([3], 400)
        await http.some(key, 2)
        group.finish(5)
        await group.form(epoch=6, kv_blocks=11)
        assert (await http.answer(key))[1] == "error"
        assert "the KV cache holds 160" in http.tokens(key)[-1].message


async def test_the_next_epoch_serves_the_revision_that_it_was_begun_with(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        group.finish(5)
        await group.form(epoch=6, revision="second")
        http = await group.http()
        word = await http.serving(lambda word: word.serving)
        assert (word.epoch, word.model_revision) == (6, "second")


async def test_a_begin_without_a_finish_ends_the_old_epoch(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (old,) = await group.form(epoch=5)
        http = await group.http()
        key = http.ask([3], 200)
        await http.some(key, 2)
        await group.form(epoch=6)
        await old.ended.wait()
        assert await http.answer(key) == reference([3], Sampling(), 200)


async def test_the_epoch_has_begun_only_when_the_last_rank_is_attached(tmp_path: Path) -> None:
    async with running_group(tmp_path, stages=2, tensor=2) as group:
        group.order(Begin(7, 64, "first", 0))
        for stage, rank in ((0, 0), (1, 1), (0, 1)):
            await group.attach(7, stage, rank, 64)
        seen = len(group.supervisor.messages)
        await group.supervisor.until(Status, after=seen + 1)
        assert not group.supervisor.all(Begun)
        await group.attach(7, 1, 0, 64)
        await group.supervisor.until(Begun)


async def test_a_rank_may_attach_before_the_epoch_is_begun(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.attach(8, 0, 0, 64)
        group.order(Begin(8, 64, "first", 0))
        await group.supervisor.until(Begun, lambda begun: begun.epoch == 8)
        group.order(Serve(8))
        http = await group.http()
        assert (await http.answer(http.ask([1], 3)))[1] == "length"


async def test_a_rank_of_a_past_epoch_is_cut_off_and_its_results_count_for_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (old,) = await group.form(epoch=5)
        await group.form(epoch=6)
        await old.ended.wait()
        late = await group.attach(5, 0, 0, 64)
        late.send(Result(epoch=5, step=0, ids=pack_ids([1])))
        await late.ended.wait()
        http = await group.http()
        assert await http.answer(http.ask([2], 9)) == reference([2], Sampling(), 9)
        assert not group.supervisor.all(PlanLost)


@pytest.mark.parametrize("attach", [Attach(5, 0, 0), Attach(5, 1, 0), Attach(5, 0, 1), Attach(5, -1, 0)])
async def test_a_second_or_impossible_rank_is_turned_away(tmp_path: Path, attach: Attach) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        stranger = await group.attach(attach.epoch, attach.stage, attach.rank, 64)
        await stranger.ended.wait()
        http = await group.http()
        assert (await http.answer(http.ask([1], 3)))[1] == "length"
        assert not group.supervisor.all(PlanLost)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
async def test_the_loss_of_any_rank_is_told_and_stops_new_work_at_once(tmp_path: Path, lost: int) -> None:
    async with running_group(tmp_path, stages=2, tensor=2) as group:
        ranks = await group.form(epoch=5)
        http = await group.http()
        key = http.ask([1], 500, journalled=True)
        await http.some(key, 3)
        await ranks[lost].kill()
        attach = ranks[lost].attach
        assert await group.lost() == PlanLost(5, attach.stage, attach.rank)
        word = await http.serving(lambda word: not word.serving)
        assert word.reason == Reason.RANK_LOST
        assert (await http.refusal(http.ask([1], 1))).code == Admission.NOT_SERVING
        group.finish(5)
        assert (await http.answer(key))[1] == "handover"


@pytest.mark.parametrize(
    "result",
    [Result(5, 9, b""), Result(5, 0, b""), Result(5, 0, b"\0" * 8), Result(5, 0, b"\0\0\0\0", logprobs=(None, None))],
)
async def test_a_result_that_fits_no_plan_costs_the_rank_its_connection(tmp_path: Path, result: Result) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http = await group.http()
        http.ask([1], 5)
        await group.status(lambda status: status.running == 1)
        rank.send(result)
        assert await group.lost() == PlanLost(5, 0, 0)


async def test_only_the_last_stages_first_rank_may_send_results(tmp_path: Path) -> None:
    async with running_group(tmp_path, stages=2) as group:
        first, _ = await group.form(epoch=5)
        first.send(Result(5, 0, b""))
        assert await group.lost() == PlanLost(5, 0, 0)


async def test_serve_after_a_loss_does_not_make_a_broken_epoch_serve(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        group.order(Begin(5, 64, "first", 0))
        rank = await group.attach(5, 0, 0, 64)
        await group.supervisor.until(Begun)
        await rank.kill()
        await group.lost()
        group.order(Serve(5))
        http = await group.http(serving=False)
        assert (await http.refusal(http.ask([1], 1))).code == Admission.NOT_SERVING


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\0\0\0\x04\xc1\xc1\xc1\xc1"])
async def test_garbage_on_the_plan_port_disturbs_nobody(tmp_path: Path, garbage: bytes) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([1], 100)
        for _ in range(5):
            reader, writer = await asyncio.open_connection(group.host, Port.PLAN)
            with contextlib.suppress(OSError):
                writer.write(garbage)
                writer.write_eof()
                async with asyncio.timeout(10):
                    await reader.read()
            writer.close()
        assert await http.answer(key) == reference([1], Sampling(), 100)
        assert not group.supervisor.all(PlanLost)


async def test_a_rank_with_another_token_is_turned_away(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        group.order(Begin(5, 64, "first", 0))
        with pytest.raises(WireError):
            await open_channel(group.host, Port.PLAN, bytes(32), plan_codec, 10)
        await group.attach(5, 0, 0, 64)
        await group.supervisor.until(Begun)


async def test_a_rank_that_stops_after_the_handshake_speaks_no_attach(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        channel = await open_channel(group.host, Port.PLAN, TOKEN, plan_codec, 10)
        channel.send(Result(5, 0, b""))
        with pytest.raises(WireError):
            await channel.receive()
        channel.abort()


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http = await group.http()
        running = http.ask([1], 20)
        await group.status(lambda status: status.running == 1)
        group.order(Drain(300.0))
        word = await http.serving(lambda word: not word.serving)
        assert word.reason == Reason.DRAIN_REQUESTED
        refused = await http.refusal(http.ask([2], 1))
        assert (refused.code, refused.retry_after_s) == (Admission.NOT_SERVING, 1.0)
        assert (await group.status(lambda status: status.draining)).running == 1
        rank.flow.set()
        assert await http.answer(running) == reference([1], Sampling(), 20)
        drained = await group.status(lambda status: status.running == status.waiting == 0)
        assert drained.draining


async def test_at_its_deadline_a_drain_hands_over_what_has_a_journal_and_ends_the_rest(tmp_path: Path) -> None:
    async with running_group(tmp_path, max_running_requests=2) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http = await group.http()
        journalled, plain, waiting = (
            http.ask([1], 99, journalled=True),
            http.ask([2], 99),
            http.ask([3], 9, journalled=True),
        )
        await group.status(lambda status: status.running > 0 and status.running + status.waiting == 3)
        group.order(Drain(0.3))
        assert (await http.answer(journalled))[1] == "handover"
        assert (await http.answer(plain))[1] == "error"
        assert (await http.refusal(waiting)).code == Admission.NOT_SERVING
        await group.status(lambda status: status.running == status.waiting == 0)
        rank.flow.set()
        await group.status(lambda status: status.kv_blocks_used == 0)


async def test_an_undrained_group_takes_work_again(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        group.order(Drain(300.0))
        await http.serving(lambda word: not word.serving)
        group.order(Undrain())
        await http.serving(lambda word: word.serving)
        assert (await http.answer(http.ask([1], 2)))[1] == "length"
        await group.status(lambda status: not status.draining)


async def test_a_draining_group_stays_draining_over_an_epoch(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        group.order(Drain(300.0))
        group.finish(5)
        await group.form(epoch=6)
        http = await group.http(serving=False)
        assert (await http.serving(lambda word: word.epoch == 6)).reason == Reason.DRAIN_REQUESTED


async def test_the_coordinator_ends_with_its_supervisor(tmp_path: Path) -> None:
    group = Group(tmp_path)
    await group.start()
    await group.form(epoch=5)
    http = await group.http()
    http.ask([1], 500)
    assert await group.stop() == 0


def _refused_start(group: Group) -> tuple[int, str]:
    process, ours = group.spawn(stderr=subprocess.PIPE)
    with ours:
        _, errors = process.communicate(timeout=30)
    return process.returncode, errors.decode().splitlines()[-1]


def test_a_missing_checkpoint_ends_it_with_65(tmp_path: Path) -> None:
    code, line = _refused_start(Group(tmp_path, model_path=tmp_path / "nothing"))
    assert code == Exit.BAD_CHECKPOINT
    assert "does not exist" in line


def test_a_bad_environment_ends_it_with_64(tmp_path: Path) -> None:
    code, line = _refused_start(Group(tmp_path, pod_ip="nowhere"))
    assert code == Exit.BAD_CONFIGURATION
    assert Env.POD_IP in line


def test_a_plan_port_in_use_ends_it_with_64_and_the_address(tmp_path: Path) -> None:
    group = Group(tmp_path)
    with socket.socket() as other:
        other.bind((group.host, Port.PLAN))
        other.listen()
        code, line = _refused_start(group)
    assert code == Exit.BAD_CONFIGURATION
    assert f"{group.host}:{Port.PLAN.value}" in line


def test_a_state_directory_too_deep_for_a_socket_ends_it_with_64(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    code, line = _refused_start(Group(tmp_path, state_dir=deep))
    assert code == Exit.BAD_CONFIGURATION
    assert "shorten" in line


def test_the_coordinator_imports_no_torch() -> None:
    check = "import sys, bireme_worker.coordinator.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


async def test_the_supervisor_hears_the_context_before_the_group_serves_and_what_it_could_be(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5, kv_blocks=10)
        began = next(n for n, message in enumerate(group.supervisor.messages) if isinstance(message, Begun))
        told = [message for message in group.supervisor.messages[:began] if isinstance(message, Status)][-1]
        assert told.limits is not None
        assert (told.limits.context, told.limits.wanted) == (9 * 16, 512)
