"""The next weights are locked in whole pages, copied as they are, and unlocked before their memory is free again."""

import gc
import mmap
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from bireme_worker.models import page_lock
from bireme_worker.models.page_lock import LEAST_BYTES, PageLock, parts_of

CPU = torch.device("cpu")


class Driver:
    """Remembers what is locked; has no more than ``most`` parts."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int, /) -> int:
        if len(self.locked) == self.most:
            return 2
        assert address % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
        assert all(address >= at + size or address + nbytes <= at for at, size in self.locked.items())
        self.locked[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int, /) -> int:
        del self.locked[address]
        return 0


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_lock, "PART_BYTES", 4 * mmap.PAGESIZE)


@pytest.fixture
def weights() -> list[torch.Tensor]:
    """Two in one piece of memory, so that they share a page, and a small one."""
    memory = torch.randn(2 * LEAST_BYTES + 3000, generator=torch.Generator().manual_seed(1)).bfloat16()
    large, other = memory[1 : LEAST_BYTES + 50].view(-1, 1), memory[LEAST_BYTES + 50 :]
    return [large, other, memory[:1]]


def _nothing() -> None:
    """Still wanted."""


def test_parts_are_the_whole_pages_of_a_tensor(weights: list[torch.Tensor]) -> None:
    for tensor in weights:
        parts = parts_of(tensor)
        covered = sum(part.stop - part.start for part in parts)
        assert all(a.stop == b.start for a, b in pairwise(parts))
        assert all((tensor.data_ptr() + part.start) % mmap.PAGESIZE == 0 for part in parts)
        assert tensor.nbytes - covered < 2 * mmap.PAGESIZE


def test_locked_weights_arrive_whole_and_are_unlocked_once(weights: list[torch.Tensor]) -> None:
    driver = Driver()
    lock = PageLock(CPU, driver)
    lock.lock([*weights, weights[0]], _nothing)
    assert [lock.holds(tensor) for tensor in weights] == [True, True, False]
    for tensor in weights[:2]:
        target = torch.zeros_like(tensor)
        lock.copy(tensor, target)
        assert torch.equal(target, tensor)
    assert driver.locked
    lock.release()
    assert not driver.locked
    assert not lock.holds(weights[0])
    del lock  # and not a second time


def test_what_can_not_be_locked_whole_is_not_held_and_all_is_unlocked_in_the_end(weights: list[torch.Tensor]) -> None:
    driver = Driver(most=len(parts_of(weights[0])) + 2)
    lock = PageLock(CPU, driver)
    lock.lock(weights, _nothing)
    assert [lock.holds(tensor) for tensor in weights] == [True, False, False]
    del lock
    assert not driver.locked


def test_weights_that_nobody_wants_any_more_are_unlocked(weights: list[torch.Tensor]) -> None:
    driver = Driver()

    def heed() -> None:
        if len(driver.locked) == 3:
            raise KeyError("enough")

    def abandoned(heed: Callable[[], None]) -> None:
        PageLock(CPU, driver).lock(weights, heed)

    with pytest.raises(KeyError, match="enough"):
        abandoned(heed)
    gc.collect()  # the error knew it
    assert not driver.locked
