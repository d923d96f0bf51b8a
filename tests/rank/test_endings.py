"""How a rank names what ended it."""

import pytest
import torch

from bireme.names import Reason
from bireme_worker.rank.main import NoMemory, reason_of


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
