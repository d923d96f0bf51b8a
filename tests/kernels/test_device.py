"""The choice of a rank's device: what it says when it can't be had, and what follows from it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bireme_worker.models.errors import ConfigurationError
from bireme_worker.rank.device import choose_device, dtype_of
from tests.support.rank_threads import identity


def found(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def test_auto_takes_the_gpu_of_the_rank_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, 0)
    assert choose_device(identity(Path()), 0) == torch.device("cpu")
    found(monkeypatch, 1)
    assert choose_device(identity(Path()), 0) == torch.device("cuda:0")
    assert choose_device(identity(Path(), device="cpu"), 0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        (0, {"device": "cuda"}, "rank 0 finds 0 GPUs in its pod and needs 1"),
        (1, {"device": "tpu"}, "BIREME_DEVICE is 'tpu': set it to auto, cpu, cuda or cuda:FIRST"),
        (2, {"device": "cuda:2"}, "rank 0 finds 2 GPUs in its pod and needs 3"),
    ],
)
def test_a_device_that_can_not_be_had_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, changes: dict[str, Any], message: str
) -> None:
    found(monkeypatch, gpus)
    with pytest.raises(ConfigurationError, match=message):
        choose_device(identity(Path(), **changes), 0)


def test_auto_computes_in_bfloat16_on_a_gpu_and_in_float32_on_a_cpu() -> None:
    assert dtype_of("auto", torch.device("cuda", 0)) == torch.bfloat16
    assert dtype_of("auto", torch.device("cpu")) == torch.float32
    assert dtype_of("float16", torch.device("cuda", 0)) == torch.float16
