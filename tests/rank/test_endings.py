"""How a rank names what ended it."""

import contextlib
from queue import SimpleQueue
from unittest.mock import Mock

import pytest
import torch

from bireme.names import Reason
from bireme.wire.errors import ConnectionLost
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.main import NoMemory, reason_of
from bireme_worker.rank.serving import _read_plans


def test_memory_that_is_not_there_has_a_reason_of_its_own() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.float32)
    assert reason_of(caught.value) is Reason.OUT_OF_MEMORY
    assert reason_of(torch.OutOfMemoryError("CUDA out of memory")) is Reason.OUT_OF_MEMORY
    told = str(NoMemory(caught.value))
    assert "(tried to allocate 4611686018427387904 bytes)" in told
    assert "lower engine.kvCache.bytes" in told
    assert "enforce fail" not in told


def test_any_other_error_of_a_step_is_the_devices() -> None:
    assert reason_of(RuntimeError("CUDA error: an illegal memory access was encountered")) is Reason.DEVICE_ERROR


def test_a_rank_that_can_read_no_more_plans_leaves_its_epoch_whatever_the_reason() -> None:
    for error in (MemoryError("a frame"), ConnectionLost("it closed the connection")):
        gate = EpochGate(7)
        with contextlib.suppress(MemoryError):
            _read_plans(Mock(receive=Mock(side_effect=error)), gate, SimpleQueue())
        assert gate.aborted
    assert gate.reason == "lost the coordinator: it closed the connection"
