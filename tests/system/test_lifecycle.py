"""How a deployment begins, hangs, recovers and ends, as its user sees it: signals, exit codes, and nothing left."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from bireme.names import Exit
from bireme.wire.plan import Sampling
from tests.support.deployment import (
    EXAMPLES,
    RECOVER_LIMIT_S,
    START_LIMIT_S,
    Deployment,
    running,
    until,
    up_environment,
    up_to_its_end,
    variant,
)
from tests.support.ports import free_port
from tests.support.streams import Delivery, deliveries, judge, stream
from tests.support.survival import busiest, stages_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MAX_TOKENS = 96
ENDLESS_TOKENS = 1500
HUNG_LIMIT_S = 60
Start = Callable[..., Deployment]


@pytest.fixture
def start(run_dir: Path, mounts: dict[str, Path]) -> Iterator[Start]:
    """Starts one group of two stages, lets something happen meanwhile, and waits until it serves."""
    with ExitStack() as stack:

        def begin(meanwhile: Callable[[Deployment], None] = lambda deployment: None) -> Deployment:
            file = variant(EXAMPLES / "smollm2.yaml", run_dir, {"replicas": 1}, "single")
            up: AbstractContextManager[Deployment] = running(file, run_dir, free_port(), mounts)
            deployment = stack.enter_context(up)
            meanwhile(deployment)
            deployment.wait_serving(1)
            return deployment

        yield begin


def told_status(deployment: Deployment) -> str:
    """What `bireme status` prints."""
    command = [sys.executable, "-m", "bireme.cli.main", "status", deployment.name]
    environment = up_environment(deployment.run_dir)
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return told.stdout + told.stderr


async def running_streams(deployment: Deployment, wanted: list[Delivery], max_tokens: int) -> asyncio.Task[None]:
    """Begin streams; return when each of them has delivered something."""
    all_begun, begun = asyncio.Event(), set[int]()

    async def one(index: int, item: Delivery) -> None:
        def told(count: int) -> None:
            if count:
                begun.add(index)
            if len(begun) == len(wanted):
                all_begun.set()

        await stream(deployment.url, item, max_tokens, told)

    async def every() -> None:
        async with asyncio.TaskGroup() as group:
            for index, item in enumerate(wanted):
                group.create_task(one(index, item))

    task = asyncio.create_task(every())
    waiting = asyncio.create_task(all_begun.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), "the streams ended before anything was done to them"
    return task


def test_the_status_command_agrees_with_every_leader(demo: Deployment) -> None:
    shown = told_status(demo)
    assert "2 of 2 groups serve" in shown
    for index in (0, 1):
        assert str(demo.state(index).epoch) in shown
    for pod in demo.status()["local"]["pods"]:
        assert str(pod["pid"]) in shown


def test_a_second_up_of_the_same_name_is_refused(demo: Deployment, mounts: dict[str, Path]) -> None:
    second = up_to_its_end(demo.run_dir / "smollm2.yaml", demo.run_dir, free_port(), mounts)
    assert second.returncode == Exit.BAD_CONFIGURATION
    assert f"`bireme up` of smollm2 runs already as process {demo.process.pid}" in second.stderr
    demo.wait_serving(2)


@pytest.mark.parametrize("goes_on", [True, False], ids=["and goes on soon", "for good"])
async def test_a_rank_that_hangs_costs_no_stream_and_its_group_serves_again(
    goes_on: bool, demo: Deployment, reference: Any
) -> None:
    wanted = deliveries(seeded=2, greedy=4)
    streams = await running_streams(demo, wanted, MAX_TOKENS)
    group = busiest(demo)
    epoch, before, killings = demo.state(group).epoch, stages_of(demo, group), demo.killings()
    hung = before[1].pids[0]
    os.kill(hung, signal.SIGSTOP)
    try:
        await asyncio.to_thread(until, lambda: demo.moved_on(group, epoch), HUNG_LIMIT_S, lambda: "never unready")
        if not goes_on:
            assert "Serving" in await asyncio.to_thread(told_status, demo), "the other group serves"
            await asyncio.to_thread(demo.wait_later, group, epoch)
    finally:
        with suppress(ProcessLookupError):
            os.kill(hung, signal.SIGCONT)
    await streams
    await asyncio.to_thread(demo.wait_later, group, epoch)
    judge(reference, wanted, MAX_TOKENS).check()
    after = stages_of(demo, group)
    assert after[0] == before[0], "the healthy stage was restarted or loaded again"
    # Where this process got no turn for as long as a hung rank is given, that rank was killed as it should be.
    kept = goes_on and demo.killings() == killings
    assert (after[1] == before[1]) == kept, "weights are kept by a rank that goes on, and a hung one is replaced"


async def test_streams_of_two_groups_lost_at_once_wait_and_go_on(demo: Deployment, reference: Any) -> None:
    wanted = deliveries(seeded=2, greedy=4)
    streams = await running_streams(demo, wanted, MAX_TOKENS)
    for index in (0, 1):
        os.kill(stages_of(demo, index)[index].pids[0], signal.SIGKILL)
    await streams
    judge(reference, wanted, MAX_TOKENS).check()
    await asyncio.to_thread(demo.wait_serving, 2, RECOVER_LIMIT_S)


async def test_what_is_killed_while_it_recovers_recovers(demo: Deployment, reference: Any) -> None:
    wanted = deliveries(seeded=1, greedy=3)
    streams = await running_streams(demo, wanted, MAX_TOKENS)
    group = busiest(demo)
    first = stages_of(demo, group)
    os.kill(first[1].pids[0], signal.SIGKILL)
    reborn: list[int] = []
    await asyncio.to_thread(
        until, lambda: _reborn(demo, group, first[1].pids[0], reborn), RECOVER_LIMIT_S, lambda: "no rank"
    )
    for pid in (reborn[0], first[0].pids[0]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await streams
    judge(reference, wanted, MAX_TOKENS).check()
    await asyncio.to_thread(demo.wait_serving, 2, RECOVER_LIMIT_S)


def _reborn(demo: Deployment, group: int, old: int, found: list[int]) -> bool:
    with suppress(httpx.HTTPError):
        pids = [rank.pid for stage in demo.state(group).stages if stage.stage == 1 for rank in stage.ranks]
        found += [pid for pid in pids if pid not in {0, old}]
    return bool(found)


async def test_ctrl_c_lets_running_streams_finish_and_ends_with_zero(demo: Deployment, reference: Any) -> None:
    wanted = deliveries(seeded=2, greedy=4)
    streams = await running_streams(demo, wanted, MAX_TOKENS)
    demo.process.send_signal(signal.SIGINT)
    await streams
    judge(reference, wanted, MAX_TOKENS).check()
    assert await asyncio.to_thread(demo.process.wait, 60) == 0
    await asyncio.to_thread(demo.wait_gone)


async def test_a_second_ctrl_c_ends_running_streams_and_everything_else(start: Start) -> None:
    deployment = start()
    streams = await running_streams(deployment, [Delivery("Count to a thousand.", Sampling())], ENDLESS_TOKENS)
    deployment.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in deployment.log.read_text(), RECOVER_LIMIT_S, deployment.tail)
    deployment.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(deployment.process.wait, 60) == 130
    await asyncio.to_thread(deployment.wait_gone)
    await asyncio.wait([streams])
    assert streams.exception() is not None, "the stream was cut, and its client must see so"


def kill_a_stage_and_a_rank(starting: Deployment) -> None:
    """A stage as soon as it is there, and the leader's rank while it loads."""
    seen: list[int] = []

    def two_stages() -> bool:
        seen[:] = [pod["pid"] for pod in pods(starting)]
        return len(seen) == 2

    until(two_stages, START_LIMIT_S, starting.tail)
    os.kill(seen[1], signal.SIGKILL)

    def a_rank() -> bool:
        seen[:] = [leaders_rank(starting)]
        return seen[0] > 0

    until(a_rank, START_LIMIT_S, starting.tail)
    os.kill(seen[0], signal.SIGKILL)


def pods(deployment: Deployment) -> list[dict[str, Any]]:
    """The pods with a process, by the status."""
    with suppress(FileNotFoundError):
        return [pod for pod in deployment.status()["local"]["pods"] if pod["pid"]]
    return []


def leaders_rank(deployment: Deployment) -> int:
    """The process of stage 0's rank, 0 while there is none."""
    with suppress(httpx.HTTPError, FileNotFoundError, StopIteration):
        stages = [stage for stage in deployment.state(0).stages if stage.stage == 0]
        return next((rank.pid for stage in stages for rank in stage.ranks), 0)
    return 0


async def test_what_dies_while_it_starts_is_started_again_and_nothing_outlives_a_sigkill_of_up(start: Start) -> None:
    deployment = start(kill_a_stage_and_a_rank)
    streams = await running_streams(deployment, [Delivery("Count to a thousand.", Sampling())], ENDLESS_TOKENS)
    assert len(deployment.leftovers()) >= 7, "two supervisors, two ranks, coordinator, HTTP process and router"
    deployment.process.kill()
    await asyncio.to_thread(deployment.wait_gone)
    deployment.process.wait()
    await asyncio.wait([streams])
    assert streams.exception() is not None, "the stream was cut, and its client must see so"
    assert "is not up any more" in told_status(deployment)


def test_one_question_is_answered_and_everything_stops(run_dir: Path, mounts: dict[str, Path]) -> None:
    question = ("--ask", "What is the capital of France?")
    ended = up_to_its_end(EXAMPLES / "smollm2.yaml", run_dir, free_port(), mounts, question)
    assert ended.returncode == 0, ended.stderr
    assert "Paris" in ended.stdout
    assert "everything has stopped" in ended.stderr
