"""With many slots and a backlog, newcomers share a step: prompts make a step long for all that decode."""

import pytest

from bireme_worker.engine.scheduler import COMPANY, PATIENCE
from tests.support.engine_driver import Engine, submit


@pytest.mark.parametrize(("waiting", "steps"), [(6, [6, 8]), (1, [4])])
def test_newcomers_of_a_backlog_share_a_step_when_there_are_many_slots(waiting: int, steps: list[int]) -> None:
    """Slots come free one by one, a step apart; with a single newcomer there is nobody to wait for."""
    engine = Engine(slots=3 * COMPANY, kv_blocks=2000, budget=1024, depth=1)
    for key in range(3 * COMPANY):
        engine.submit(submit([key], max_tokens=4 + key if key < 6 else 100))
    for _ in range(3):
        engine.step()
    begun = len(engine.plans)
    for key in range(waiting):
        engine.submit(submit([200 + key], max_tokens=2))
    engine.run()
    admitting = [number for number, plan in enumerate(engine.plans[begun:], begun) if plan.admits]
    assert admitting == steps


def test_a_free_slot_waits_only_so_long_for_others() -> None:
    engine = Engine(slots=3 * COMPANY, kv_blocks=2000, budget=1024, depth=1)
    for key in range(3 * COMPANY):
        engine.submit(submit([key], max_tokens=4 if key == 0 else 100))
    for key in range(6):
        engine.submit(submit([200 + key], max_tokens=2))
    while engine.scheduler.waiting and len(engine.plans) < 40:
        engine.step()
    first = next(number for number, plan in enumerate(engine.plans[1:], start=1) if plan.admits)
    assert first == 3 + PATIENCE  # the last step without a free slot, and then
