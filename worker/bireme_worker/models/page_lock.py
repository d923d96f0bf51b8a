"""Host memory that a GPU reads by itself: the next weights are locked in place while they wait.

Out of pageable memory processors copy everything once more into pinned buffers, and clients wait for that. Locking
takes its time too, so it is done part by part before anybody waits; a part holds up the driver for some milliseconds.
"""

import mmap
import weakref
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import torch

PART_BYTES: Final = 32 << 20
LEAST_BYTES: Final = 1 << 20
"""Smaller tensors are copied as they are."""
_PORTABLE: Final = 1
"""For all contexts of the process."""


class Driver(Protocol):
    """What locks memory: CUDA's runtime. 0 is success."""

    def cudaHostRegister(self, address: int, nbytes: int, flags: int, /) -> int:  # noqa: N802  its own names
        """Lock."""

    def cudaHostUnregister(self, address: int, /) -> int:  # noqa: N802
        """Unlock."""


class PageLock:
    """Tensors whose memory is locked, and kept, until ``release`` or until nobody has this any more."""

    def __init__(self, device: torch.device, driver: Driver | None = None) -> None:
        self._driver: Driver = driver or torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._whole: set[int] = set()
        self._kept: list[torch.Tensor] = []
        self._addresses: list[int] = []
        # Memory that was freed while locked could not be locked again: hence the tensors are kept until then.
        self._end = weakref.finalize(self, _unlock, device, self._driver, self._addresses, self._kept)
        self._end.atexit = False

    def lock(self, tensors: Iterable[torch.Tensor], heed: Callable[[], None]) -> None:
        """Lock those that are large, until the system has no more to lock; ``heed`` is called between parts."""
        for tensor in tensors:
            start = tensor.data_ptr()
            if tensor.nbytes < LEAST_BYTES or not tensor.is_contiguous() or start in self._whole:
                continue
            self._kept.append(tensor)
            for part in parts_of(tensor):
                heed()
                if int(self._driver.cudaHostRegister(start + part.start, part.stop - part.start, _PORTABLE)):
                    return
                self._addresses.append(start + part.start)
            self._whole.add(start)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether all its whole pages are locked."""
        return tensor.data_ptr() in self._whole

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """``source``, which it holds, into ``target`` in stream order; both contiguous. Nobody waits for it."""
        taken, place = (tensor.view(-1).view(torch.uint8) for tensor in (source, target))
        at = 0
        for part in parts_of(source):  # a copy must not reach over two parts, nor over what is not locked
            for piece in (slice(at, part.start), part):
                place[piece].copy_(taken[piece], non_blocking=True)
            at = part.stop
        place[at:].copy_(taken[at:], non_blocking=True)

    def release(self) -> None:
        """Unlock all; may take as long as locking."""
        self._end()
        self._whole.clear()


def parts_of(tensor: torch.Tensor) -> list[slice]:
    """The bytes of a tensor that are whole pages, PART_BYTES at a time: pages at its ends may be others' too."""
    page, address = mmap.PAGESIZE, tensor.data_ptr()
    begin, end = -address % page, tensor.nbytes - (address + tensor.nbytes) % page
    return [slice(at, min(at + PART_BYTES, end)) for at in range(begin, end, PART_BYTES)]


def _unlock(device: torch.device, driver: Driver, addresses: list[int], kept: list[torch.Tensor]) -> None:
    if device.type == "cuda" and addresses:
        torch.cuda.set_device(device)  # a thread begins on the first GPU
    for address in addresses:
        driver.cudaHostUnregister(address)
    addresses.clear()
    kept.clear()
