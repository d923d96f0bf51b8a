"""A reload as the coordinator does it: to a point of rest, one commit between two plans, then on with everything."""

from pathlib import Path

from bireme.wire.requests import Frame, Serving
from bireme_worker.coordinator.messages import Drain, Quiet, Reload, Serve, Swap, Undrain, Unfit
from tests.support.coordinated_group import Group, running_group
from tests.support.engine_driver import GREEDY
from tests.support.model_rank import reference

PROMPT = list(range(3, 40))
NEVER_S = 1000.0


def reload(group: Group, *, finish: bool, deadline_s: float = NEVER_S) -> None:
    group.order(Reload(1, 1, "", finish, deadline_s))


async def obeyed(group: Group) -> None:
    """The coordinator has done what it was told: it answers a later order."""
    group.order(Drain(NEVER_S))
    await group.status(lambda status: status.draining)
    group.order(Undrain())
    await group.status(lambda status: not status.draining)


async def commit(group: Group) -> None:
    await group.supervisor.until(Quiet)
    group.order(Swap(1, 1, "", "second"))


async def test_finishing_lets_running_requests_end_while_new_ones_wait(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(1, flow=False)
        http = await group.http()
        old = http.ask(PROMPT, 30)
        await group.status(lambda status: status.running == 1)
        reload(group, finish=True)
        await obeyed(group)
        new = http.ask([9, 9, 9], 5)
        await group.status(lambda status: status.waiting == 1)
        rank.flow.set()
        assert await http.answer(old) == reference(PROMPT, GREEDY, 30)
        await commit(group)
        serving = await http.serving(lambda word: word.model_revision == "second")
        assert (serving.serving, serving.generation, http.ids(new)) == (True, 1, [])
        group.order(Serve(1))
        assert await http.answer(new) == reference([9, 9, 9], GREEDY, 5)
        [(generation, before)] = rank.commits
        assert generation == 1
        assert all(row.slot for plan in rank.plans[:before] for row in plan.rows)
        assert next(row.count for plan in rank.plans[before:] for row in plan.rows) == 3
        words = http.inbox.messages
        first_new = next(at for at, word in enumerate(words) if isinstance(word, Serving) and word.generation == 1)
        frames = [word for word in words[first_new:] if isinstance(word, Frame)]
        assert {tokens.key for frame in frames for tokens in frame.tokens} == {new}


async def test_restarting_computes_prompt_and_emitted_ids_anew(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        (rank,) = await group.form(1)
        http = await group.http()
        key = http.ask(PROMPT, 400)
        await http.some(key, 3)
        reload(group, finish=False)
        await commit(group)
        await http.serving(lambda word: word.model_revision == "second")
        emitted = len(http.ids(key))
        group.order(Serve(1))
        assert await http.answer(key) == reference(PROMPT, GREEDY, 400)
        [(_, before)] = rank.commits
        first = rank.plans[before]
        assert first.rows[0].start == 0, "nothing of the old weights may be read"
        assert sum(row.count for plan in rank.plans[before:] for row in plan.rows) >= len(PROMPT) + emitted


async def test_a_deadline_turns_finishing_into_restarting(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(1)
        http = await group.http()
        key = http.ask(PROMPT, 400)
        await http.some(key, 3)
        reload(group, finish=True, deadline_s=0.0)
        await commit(group)
        group.order(Serve(1))
        assert await http.answer(key) == reference(PROMPT, GREEDY, 400)


async def test_the_prefix_cache_is_empty_after_a_commit(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(1)
        http = await group.http()
        cached = []
        for turn in range(3):
            if turn == 2:
                reload(group, finish=True)
                await commit(group)
                group.order(Serve(1))
            key = http.ask(PROMPT, 2)
            await http.answer(key)
            cached.append(http.tokens(key)[0].cached)
        assert cached == [0, 32, 0]


async def test_a_reload_that_is_given_up_lets_the_waiting_ones_in(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(1)
        http = await group.http()
        reload(group, finish=True)
        await group.supervisor.until(Quiet)
        key = http.ask(PROMPT, 4)
        await group.status(lambda status: status.waiting == 1)
        group.order(Serve(1))
        assert await http.answer(key) == reference(PROMPT, GREEDY, 4)
        assert http.inbox.all(Serving)[-1].model_revision == "first"


async def test_a_checkpoint_without_a_tokenizer_is_reported_and_nothing_waits(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(1)
        http = await group.http()
        group.order(Reload(1, 1, str(tmp_path / "nothing"), True, NEVER_S))
        assert "does not exist" in (await group.supervisor.until(Unfit)).message
        assert await http.answer(http.ask(PROMPT, 4)) == reference(PROMPT, GREEDY, 4)


async def test_a_reload_given_up_while_its_text_is_read_holds_nobody(tmp_path: Path, smollm2_dir: Path) -> None:
    async with running_group(tmp_path) as group:
        await group.form(1)
        http = await group.http()
        group.order(Reload(1, 1, str(smollm2_dir), True, NEVER_S))
        group.order(Serve(1))
        await group.status(lambda status: status.epoch == 1)
        key = http.ask(PROMPT, 4)
        assert await http.answer(key) == reference(PROMPT, GREEDY, 4)
        assert not group.supervisor.all(Quiet)
