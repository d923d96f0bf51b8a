"""The work queue keeps its promises on a clock of its own (looptime): no test waits."""

import asyncio
from collections import Counter

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme_operator.queue import FIRST_RETRY_S, LAST_RETRY_S, WorkQueue

Queue = WorkQueue[str]


def make() -> Queue:
    return WorkQueue(asyncio.get_running_loop().time, lambda: 1.0)


@pytest.mark.looptime
async def test_a_key_that_is_asked_for_twice_is_worked_on_once() -> None:
    queue = make()
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


@pytest.mark.looptime
async def test_a_key_asked_for_while_it_is_worked_on_comes_back_and_is_never_held_twice() -> None:
    queue = make()
    queue.add("a")
    await queue.get()
    queue.add("a")
    assert len(queue) == 0, "its worker still has it"
    queue.done("a")
    assert await queue.get() == "a"


@pytest.mark.looptime
async def test_an_urgent_key_overtakes_the_rest() -> None:
    queue = make()
    for key in "abc":
        queue.add(key, urgent=False)
    queue.add("c")
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]


@pytest.mark.looptime
async def test_a_delayed_key_comes_at_its_time_and_the_earlier_time_wins() -> None:
    queue, loop = make(), asyncio.get_running_loop()
    queue.add_at("a", 50.0)
    queue.add_at("a", 20.0)
    queue.add_at("a", 30.0)
    assert await queue.get() == "a"
    assert loop.time() == pytest.approx(20.0, abs=0.01)


@pytest.mark.looptime
async def test_a_worker_that_waits_hears_of_an_earlier_time() -> None:
    queue, loop = make(), asyncio.get_running_loop()
    queue.add_at("late", 100.0)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add_at("early", 5.0)
    assert await waiting == "early"
    assert loop.time() == pytest.approx(5.0, abs=0.01)


@pytest.mark.looptime
async def test_a_time_set_while_the_key_is_worked_on_counts_afterwards() -> None:
    queue, loop = make(), asyncio.get_running_loop()
    queue.add("a")
    await queue.get()
    queue.add_at("a", 3.0)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(10)
    assert not waiting.done()
    queue.done("a")
    assert await waiting == "a"
    assert loop.time() == pytest.approx(10.0, abs=0.01)


@pytest.mark.looptime
async def test_waits_double_up_to_a_limit_and_success_forgets_them() -> None:
    queue = make()
    waits = []
    queue.add("a")
    for _ in range(14):
        await queue.get()
        waits.append(queue.failed("a"))
    assert waits[:4] == pytest.approx([FIRST_RETRY_S * 2**n for n in range(4)])
    assert waits[-1] == pytest.approx(LAST_RETRY_S)
    await queue.get()
    queue.done("a")
    queue.add("a")
    await queue.get()
    assert queue.failed("a") == pytest.approx(FIRST_RETRY_S)


@pytest.mark.looptime
async def test_news_for_a_key_that_keeps_failing_is_tried_soon() -> None:
    queue = make()
    queue.add("a")
    for _ in range(12):
        await queue.get()
        queue.failed("a")
    await queue.get()
    queue.add("a")
    assert queue.failed("a") <= 1.0


@pytest.mark.looptime
async def test_what_is_asked_of_a_key_that_rests_is_done_at_once_after_its_rest() -> None:
    queue, loop = make(), asyncio.get_running_loop()
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.done("a", rest_s=2.0)
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b", "others do not wait for it"
    queue.add("a")
    assert await queue.get() == "a"
    assert loop.time() == pytest.approx(2.0, abs=0.01)
    queue.done("a")
    queue.add("a")
    assert await queue.get() == "a"
    assert loop.time() == pytest.approx(2.0, abs=0.01)


@pytest.mark.looptime
async def test_a_rest_that_nobody_disturbs_ends_without_a_trace() -> None:
    queue, loop = make(), asyncio.get_running_loop()
    queue.add("a")
    await queue.get()
    queue.done("a", rest_s=2.0)
    queue.add_at("a", 50.0)
    assert await queue.get() == "a"
    assert loop.time() == pytest.approx(50.0, abs=0.01)


Asks = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "low", "at", "fail", "pause"])), max_size=40)


@given(Asks, st.integers(1, 3))
def test_whatever_is_asked_no_key_is_held_by_two_and_each_is_seen_after_its_last_asking(
    asks: list[tuple[str, str]], workers: int
) -> None:
    async def play() -> None:
        queue, held, seen, failing = make(), Counter[str](), Counter[str](), Counter[str]()
        loop = asyncio.get_running_loop()

        async def work() -> None:
            while True:
                key = await queue.get()
                held[key] += 1
                assert held[key] == 1
                seen[key] = 0
                await asyncio.sleep(0.3)
                held[key] -= 1
                if failing[key] > 0:
                    failing[key] -= 1
                    queue.failed(key)
                else:
                    queue.done(key)

        tasks = [loop.create_task(work()) for _ in range(workers)]
        for key, what in asks:
            match what:
                case "add" | "low":
                    seen[key] = 1
                    queue.add(key, urgent=what == "add")
                case "at":
                    seen[key] = 1
                    queue.add_at(key, loop.time() + 2)
                case "fail":
                    failing[key] += 1
                case "pause":
                    await asyncio.sleep(0.2)
        await asyncio.sleep(600)
        assert not any(seen.values()), "something that was asked for was never done"
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(play())


@pytest.mark.looptime
async def test_a_worker_that_is_cancelled_in_the_moment_of_news_ends() -> None:
    """Else an operator that has lost its Lease waits for its workers for ever."""
    queue = make()
    queue.add_at("a", 1000)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add_at("b", 900)
    worker.cancel()
    await asyncio.wait([worker], timeout=10)
    assert worker.cancelled()
