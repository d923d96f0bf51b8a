"""Local stages share one machine's GPUs."""

from pathlib import Path

import pytest

from bireme.names import Env
from bireme_operator.local.devices import own_device, visible_gpus


@pytest.mark.parametrize(("place", "tensor", "first"), [(0, 1, 0), (3, 1, 3), (4, 1, 0), (1, 2, 2), (2, 2, 0)])
def test_each_stage_is_told_where_its_own_gpus_begin(place: int, tensor: int, first: int) -> None:
    assert own_device(place, tensor, "auto", 4) == {Env.DEVICE: f"auto:{first}"}


@pytest.mark.parametrize(("asked", "gpus"), [("auto", 0), ("auto", 1), ("cpu", 4), ("cuda:1", 4)])
def test_nobody_is_told_where_there_is_no_choice(asked: str, gpus: int) -> None:
    assert own_device(1, 1, asked, gpus) == {}


def test_gpus_are_counted_as_a_process_would_see_them(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == 2
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == 1
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
