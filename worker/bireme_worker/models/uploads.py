"""Weights on their way to a GPU: several threads read slices of them and send them from pinned memory.

One thread copies out of the page cache at a fraction of what the bus takes, and from pageable memory the driver copies
once more, alone. Each thread has a stream and two pinned buffers, so it reads the next slice while one is on its way.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import torch

MOST_THREADS: Final = 8
CHUNK_BYTES: Final = 8 << 20
_BUFFERS: Final = 2

Read = Callable[[], torch.Tensor]


class Uploads:
    """Copies to ``device``; they wait for what the current stream does until now, and the block's end for them.

    Elsewhere than on a GPU the same without streams.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:  # a thread can only be given a numbered one
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._before = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        self._pool = ThreadPoolExecutor(threads, "upload", self._enter_thread)
        self._lanes = threading.local()
        self._copies: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def copy(self, read: Read, target: torch.Tensor) -> None:
        """Fill ``target``, best contiguous and up to CHUNK_BYTES, with what ``read`` returns in a thread."""
        self._copies.append(self._pool.submit(self._copy, read, target))

    def copy_whole(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Fill ``target`` of any size with ``source`` of its shape."""
        if not (source.is_contiguous() and target.is_contiguous()):
            self.copy(lambda: source, target)
            return
        step = max(CHUNK_BYTES // target.element_size(), 1)
        parts, places = torch.split(source.view(-1), step), torch.split(target.view(-1), step)
        for part, place in zip(parts, places, strict=True):
            self.copy(lambda part=part: part, place)  # type: ignore[misc]

    def wait(self) -> None:
        """Return when all is there; raises what a ``read`` raised."""
        for copy in self._copies:
            copy.result()
        self._copies.clear()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _enter_thread(self) -> None:
        if self._device.type == "cuda":  # a thread begins on the first GPU
            torch.cuda.set_device(self._device)

    def _copy(self, read: Read, target: torch.Tensor) -> None:
        part = read()
        if self._device.type != "cuda" or part.is_cuda:
            target.copy_(part)
            return
        lane = getattr(self._lanes, "lane", None)
        if lane is None:
            lane = self._lanes.lane = _Lane(self._device, self._before)
        lane.send(part, target)


class _Lane:
    """One thread's stream and buffers."""

    def __init__(self, device: torch.device, before: torch.cuda.Event | None) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if before is not None:
            self._stream.wait_event(before)
        self._buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS)]
        self._sent = [torch.cuda.Event() for _ in range(_BUFFERS)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def send(self, part: torch.Tensor, target: torch.Tensor) -> None:
        if target.nbytes > CHUNK_BYTES:  # a row that is that long
            with torch.cuda.stream(self._stream):
                target.copy_(part)
            return
        self._turn = (self._turn + 1) % _BUFFERS
        self._sent[self._turn].synchronize()
        pinned = self._buffers[self._turn][: target.nbytes].view(target.dtype).view(target.shape)
        pinned.copy_(part)
        with torch.cuda.stream(self._stream):
            target.copy_(pinned, non_blocking=True)
            self._sent[self._turn].record(self._stream)
