"""How many plans a group has in flight."""

from pathlib import Path

import pytest

from bireme_worker.coordinator.main import plans_in_flight
from tests.support.rank_threads import identity


@pytest.mark.parametrize(
    ("device", "stages", "plans"), [("cpu", 1, 2), ("cpu", 3, 3), ("cuda", 1, 3), ("cuda:2", 2, 5)]
)
def test_a_gpu_has_two_plans_a_stage_and_one_on_its_way(device: str, stages: int, plans: int) -> None:
    assert plans_in_flight(identity(Path(), stages=stages, device=device)) == plans
