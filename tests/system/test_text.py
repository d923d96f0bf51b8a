"""The text is the model's: greedy ids of a crowded batch, of late arrivals and of lone requests, judged by the oracle."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.wire.plan import Sampling
from tests.support.deployment import EXAMPLES, Deployment, running, variant
from tests.support.ports import free_port
from tests.support.streams import PROMPTS, Delivery, judge, run_all, stream

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MAX_TOKENS = 64
BATCH = 16
FIRST = 12
SECOND_AFTER_IDS = 1
LAST_AFTER_IDS = 150
ALONE = (0, 9, 15)
# One group, so that all requests share one batch.
CASES = {"tensor 1 × pipeline 2": "smollm2.yaml", "tensor 3 × pipeline 2": "smollm2-tensor3.yaml"}


@pytest.fixture(scope="module", params=CASES.values(), ids=list(CASES))
def group(request: pytest.FixtureRequest, mounts: dict[str, Path]) -> Iterator[Deployment]:
    """One serving group with the parallelism of an example."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        file = variant(EXAMPLES / request.param, Path(path), {"replicas": 1})
        with running(file, Path(path), free_port(), mounts) as deployment:
            deployment.wait_serving(1)
            yield deployment


def mixed() -> list[Delivery]:
    """Twenty prompts: short ones, some of a page with common beginnings, and some longer than a step's token budget."""
    page = " ".join(PROMPTS)
    longer = [f"{page} {prompt}" for prompt in PROMPTS[:6]]
    longest = [f"{'The sea was calm that day. ' * (80 + 10 * i)} {PROMPTS[i]}" for i in range(2)]
    short = ["Hi", "Go on.", "Où est la bibliothèque ?", "数えてください: 一、二"]
    return [Delivery(prompt, Sampling()) for prompt in [*PROMPTS, *longer, *longest, *short]]


async def crowd(deployment: Deployment, wanted: list[Delivery]) -> int:
    """Twelve requests at once, four more while those run, four after those; returns the most that ran at once."""
    second, last = asyncio.Event(), asyncio.Event()

    def told(total: int) -> None:
        if total >= SECOND_AFTER_IDS:
            second.set()
        if total >= LAST_AFTER_IDS:
            last.set()

    async def later(event: asyncio.Event, items: list[Delivery]) -> None:
        await event.wait()
        await run_all(deployment.url, items, MAX_TOKENS, lambda _: None)

    working = asyncio.gather(
        run_all(deployment.url, wanted[:FIRST], MAX_TOKENS, told),
        later(second, wanted[FIRST:BATCH]),
        later(last, wanted[BATCH:]),
    )
    most = 0
    while not working.done():
        most = max(most, (await asyncio.to_thread(deployment.state, 0)).running)
        await asyncio.wait([working], timeout=0.05)
    await working
    return most


async def test_greedy_ids_are_the_model_s_in_a_crowd_with_late_arrivals_and_alone(
    group: Deployment, reference: Any
) -> None:
    wanted = mixed()
    assert await crowd(group, wanted) >= BATCH
    alone = [Delivery(wanted[index].prompt, Sampling()) for index in ALONE]
    for item in alone:
        await stream(group.url, item, MAX_TOKENS)
    lengths = sorted(len(item.prompt_ids) for item in wanted)
    assert lengths[0] < 40
    assert lengths[-1] > 512, "no prompt was longer than one step's budget"
    judge(reference, [*wanted, *alone], MAX_TOKENS).check()
