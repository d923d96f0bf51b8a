"""One epoch from the view of HTTP processes and ranks: real process, real sockets, a model rank."""

from pathlib import Path

import pytest

from bireme.names import Admission, Reason
from bireme.wire.errors import WireError
from bireme.wire.plan import Plan, Sampling, unpack_ids
from bireme.wire.requests import Accepted, Allow, Frame
from bireme_worker.coordinator.messages import Abort, Status
from tests.support.coordinated_group import CONTEXT, Group, Rank, running_group
from tests.support.model_rank import reference

SAMPLING = Sampling(seed=3, stop_ids=(1, 2), min_tokens=3, frequency_penalty=0.25)


async def test_a_stream_brings_the_ids_of_the_reference_one_frame_per_step(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([1, 2, 3], 20, SAMPLING)
        assert await http.answer(key) == reference([1, 2, 3], SAMPLING, 20)
        assert http.inbox.all(Accepted) == [Accepted(key)]
        steps = [frame.step for frame in http.inbox.all(Frame)]
        assert len(set(steps)) == len(steps)


@pytest.mark.parametrize(("stages", "tensor"), [(1, 2), (2, 1), (3, 2)])
async def test_every_rank_of_every_stage_gets_the_same_plans(tmp_path: Path, stages: int, tensor: int) -> None:
    async with running_group(tmp_path, stages, tensor) as group:
        ranks = await group.form(epoch=5)
        http = await group.http()
        keys = [http.ask([key] * 30, 12, SAMPLING) for key in range(12)]
        for key in keys:
            assert await http.answer(key) == reference([key - 1] * 30, SAMPLING, 12)
        await group.status(lambda status: status.running == 0)
        plans = [_plans(rank) for rank in ranks]
        assert len(plans) == stages * tensor
        shortest = min(len(one) for one in plans)
        assert shortest > 0
        assert all(one[:shortest] == plans[0][:shortest] for one in plans)


def _plans(rank: Rank) -> list[Plan]:
    return rank.plans


async def test_two_http_processes_with_the_same_keys_get_their_own_answers(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        one, two = await group.http(), await group.http()
        first, second = one.ask([1], 15), two.ask([2], 15)
        assert first == second
        assert await one.answer(first) == reference([1], Sampling(), 15)
        assert await two.answer(second) == reference([2], Sampling(), 15)


async def test_a_cancelled_request_frees_everything_while_others_go_on(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        leaving, staying = http.ask([1], 500), http.ask([2], 100)
        await http.some(leaving, 3)
        http.cancel(leaving)
        assert await http.answer(staying) == reference([2], Sampling(), 100)
        status = await group.status(lambda status: status.kv_blocks_used == 0)
        assert (status.running, status.waiting, status.finished) == (0, 0, {"cancelled": 1, "length": 1})
        assert len(http.ids(leaving)) < 500


async def test_a_cancel_that_crosses_the_end_does_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([1], 1)
        await http.answer(key)
        http.cancel(key)
        http.cancel(999)
        assert (await http.answer(http.ask([2], 2)))[1] == "length"


async def test_an_http_process_that_ends_takes_its_requests_along(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        lost, other = await group.http(), await group.http()
        keys = [lost.ask([key], 500) for key in range(12)]
        await lost.some(keys[0], 2)
        await lost.inbox.stop()
        assert (await other.answer(other.ask([9], 5)))[1] == "length"
        status = await group.status(lambda status: status.running == status.waiting == status.kv_blocks_used == 0)
        assert status.finished == {"cancelled": 12, "length": 1}


async def test_what_can_never_fit_is_refused_at_once_with_the_numbers(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5, kv_blocks=9)
        http = await group.http()
        assert (await http.serving(lambda word: word.serving)).limits.context == 128
        refused = await http.refusal(http.ask([1] * 100, 29))
        assert refused.code == Admission.NEVER_FITS
        assert "together 129, and the KV cache holds 128" in refused.message
        assert (await http.refusal(http.ask([50], 1))).message == "the prompt has token id 50: ids are 0 to 49"
        assert (await http.answer(http.ask([1] * 100, 28)))[1] == "length"


async def test_the_context_is_the_models_or_the_configured_one(tmp_path: Path) -> None:
    async with running_group(tmp_path, max_model_length=100) as group:
        await group.form(epoch=5)
        http = await group.http()
        assert (await http.serving(lambda word: word.serving)).limits.context == 100
        assert "the context holds 100" in (await http.refusal(http.ask([1] * 100, 1))).message
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        assert (await http.serving(lambda word: word.serving)).limits.context == CONTEXT


async def test_a_full_queue_refuses_for_now(tmp_path: Path) -> None:
    async with running_group(tmp_path, max_running_requests=2, max_queued_requests=1) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http = await group.http()
        keys = [http.ask([key], 5) for key in range(4)]
        refused = await http.refusal(keys[3])
        assert (refused.code, refused.retry_after_s) == (Admission.QUEUE_FULL, 1.0)
        rank.flow.set()
        for key in keys[:3]:
            assert (await http.answer(key))[1] == "length"


async def test_a_repeated_prompt_is_told_as_cached(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        first = http.ask([7] * 60, 3)
        await http.answer(first)
        again = http.ask([7] * 60, 3)
        await http.answer(again)
        assert http.ids(first) == http.ids(again)
        assert [tokens.cached for tokens in http.tokens(again)] == [48, 0, 0]


async def test_a_resumed_request_goes_on_and_one_that_had_ended_ends(tmp_path: Path) -> None:
    whole, finish = reference([4], SAMPLING, 20)
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        resumed = http.ask([4], 20, SAMPLING, whole[:2])
        ended = http.ask([4], 20, SAMPLING, whole)
        assert await http.answer(resumed) == (whole[2:], finish)
        assert await http.answer(ended) == ([], finish)


async def test_an_operator_may_abort_a_request_by_its_id(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        key = http.ask([1], 500)
        await http.some(key, 2)
        group.order(Abort(f"r{key}"))
        assert (await http.answer(key))[1] == "error"
        assert "aborted" in http.tokens(key)[-1].message


async def test_the_key_of_a_running_request_can_not_be_used_twice(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http, other = await group.http(), await group.http()
        http._keys = iter([1, 1])  # type: ignore[assignment]
        http.ask([1], 5)
        http.ask([2], 5)
        await http.inbox.until_closed()
        rank.flow.set()
        assert (await other.answer(other.ask([3], 2)))[1] == "length"


async def test_a_mask_of_another_vocabulary_closes_the_connection_before_a_rank_sees_it(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(epoch=5)
        broken, other = await group.http(), await group.http()
        broken.inbox.channel.send(Allow(1, 0, b"\xff"))
        await broken.inbox.until_closed()
        assert await other.answer(other.ask([1], 15)) == reference([1], Sampling(), 15)
        assert all(not plan.masks for plan in rank.plans)


async def test_an_http_process_without_the_token_is_turned_away(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        with pytest.raises(WireError):
            await group.http(token=bytes(32), serving=None)
        assert not (await (await group.http(serving=False)).serving(lambda word: not word.serving)).serving


async def test_before_the_first_epoch_requests_are_refused_with_a_time_to_come_again(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        http = await group.http(serving=False)
        word = await http.serving(lambda word: not word.serving)
        assert (word.reason, word.model_revision, word.limits.running) == (Reason.LOADING, "first", 8)
        refused = await http.refusal(http.ask([1], 1))
        assert (refused.code, refused.retry_after_s) == (Admission.NOT_SERVING, 1.0)


async def test_the_status_tells_work_under_way_and_its_age(tmp_path: Path) -> None:
    async with running_group(tmp_path, max_running_requests=1) as group:
        (rank,) = await group.form(epoch=5, flow=False)
        http = await group.http()
        keys = [http.ask([1] * 20, 3), http.ask([2] * 20, 3)]
        held = await group.status(lambda status: status.step_age_s > 0.3)
        assert (held.epoch, held.running, held.waiting, held.step) == (5, 1, 1, 0)
        assert (held.kv_blocks, held.kv_blocks_used, held.queued_prefill_tokens) == (63, 2, 20)
        rank.flow.set()
        for key in keys:
            await http.answer(key)
        done = await group.status(lambda status: status.running == 0)
        assert (done.waiting, done.step_age_s) == (0, 0.0)
        assert (done.prompt_tokens, done.generation_tokens, done.finished) == (40, 6, {"length": 2})


async def test_the_status_comes_at_least_four_times_a_second_while_idle(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        seen = len(group.supervisor.messages)
        for _ in range(3):
            await group.supervisor.until(Status, after=seen)
            seen = len(group.supervisor.messages)


async def test_requests_that_come_together_share_their_first_step(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(epoch=5)
        http = await group.http()
        keys = [http.ask([key], 2) for key in range(6)]
        for key in keys:
            await http.answer(key)
        assert len(rank.plans) < 12
        assert isinstance(group, Group)


async def test_logprobs_reach_the_request_that_asked(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(epoch=5)
        http = await group.http()
        asked, plain = http.ask([1], 2, Sampling(logprobs=1)), http.ask([1], 2)
        await http.answer(asked)
        await http.answer(plain)
        (first, _) = http.tokens(asked)
        assert first.logprobs[0].top == ((unpack_ids(first.ids)[0], -1.0),)
        assert [tokens.logprobs for tokens in http.tokens(plain)] == [(), ()]
