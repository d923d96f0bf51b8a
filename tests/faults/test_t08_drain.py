"""T8: SIGTERM to a stage drains its group: what runs is finished without a seam, then the stage exits with 0."""

import os
import signal

import pytest

from tests.faults.bench import Bench
from tests.faults.parts import one

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_a_stage_asked_to_stop_lets_running_answers_finish_and_is_replaced(bench: Bench) -> None:
    asks, epoch = bench.asks(("greedy", "sampled"), tokens=64), bench.state().epoch
    victim = one(bench.parts(), "supervisor", stage=bench.pipeline - 1)
    async with bench.asking(asks, after_ids=4):
        os.kill(victim.pid, signal.SIGTERM)
        await bench.wait(lambda: _drains_or_did(bench, epoch), "nobody saw the drain")
    router = (bench.deployment.run_dir / bench.deployment.name / "logs" / "router.log").read_text()
    assert not [ask.label for ask in asks if any(i.split("-", 1)[1] in router for i in ask.response_ids)]
    await bench.again(epoch)
    log = (bench.deployment.run_dir / bench.deployment.name / "logs" / "up.log").read_text()
    assert "ended with 0: drained and stopped as asked" in log


def _drains_or_did(bench: Bench, epoch: int) -> bool:
    (group,) = bench.deployment.groups()
    return bool(group["state"] != "Serving" or group["epoch"] > epoch)
