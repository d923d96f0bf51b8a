"""The main promise: a client does not notice when a rank, a stage or a leader is killed in the middle of its answer."""

import os
from typing import Any

import pytest

from tests.support.deployment import Deployment
from tests.support.streams import deliveries, judge
from tests.support.survival import VICTIMS, stages_of, survive
from tests.system.sampler import StatusSampler

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

REPEAT = int(os.environ.get("BIREME_SOAK_REPEAT", "2"))
TIMED = "BIREME_SOAK_REPEAT" in os.environ
"""A soak has the machine to itself, so that times can be judged."""
MAX_TOKENS = 48


@pytest.mark.parametrize("repetition", range(REPEAT))
@pytest.mark.parametrize("victim", VICTIMS)
async def test_sixteen_streams_survive_the_loss_of(
    victim: str, repetition: int, demo: Deployment, reference: Any
) -> None:
    wanted = deliveries(seeded=8, greedy=8, first_seed=1000 * (repetition + 1))
    with StatusSampler(demo) as sampler:
        killer = await survive(demo, victim, wanted, MAX_TOKENS)
    sampler.fault(killer.group, killer.killed_at)
    sampler.check(timed=TIMED)
    judge(reference, wanted, MAX_TOKENS).check()
    assert killer.unready_after_s <= 2 or not TIMED
    after = demo.state(killer.group)
    assert after.epoch > killer.epoch
    survivor = 1 if victim == "a leader" else 0
    assert stages_of(demo, killer.group)[survivor] == killer.before[survivor], (
        "a survivor was restarted or loaded again"
    )
    assert stages_of(demo, killer.group)[1 - survivor] != killer.before[1 - survivor]
