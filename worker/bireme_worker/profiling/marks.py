"""Marks around the parts of a step: nothing at all until somebody listens, then ranges in torch's trace or for Nsight.

Sums and transfers are marked by a communicator in front of the epoch's own, which is there only while somebody listens.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from bireme_worker.parallel.communicator import Communicator
from bireme_worker.profiling.parts import Part

Maker = Callable[[str], AbstractContextManager[object]]
_NOTHING: Final[AbstractContextManager[object]] = nullcontext()


class Marker:
    """Who listens in this process. ``make`` opens a range; None: nobody listens."""

    make: Maker | None = None


MARKER: Final = Marker()


def mark(part: Part) -> AbstractContextManager[object]:
    """A range for the block that follows."""
    make = MARKER.make
    return _NOTHING if make is None else make(part)


def nvtx_range(part: str) -> AbstractContextManager[object]:
    """A range that Nsight Systems shows."""
    made: AbstractContextManager[object] = torch.cuda.nvtx.range(part)
    return made


def listen_for_nsight() -> None:
    """Open every mark as an NVTX range from now on; does nothing where there is no GPU."""
    if torch.cuda.is_available():
        MARKER.make = nvtx_range


class MarkedCommunicator:
    """``inner`` with a mark around each of its calls."""

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        self.epoch, self.rank, self.size, self.captures = inner.epoch, inner.rank, inner.size, inner.captures

    def all_reduce(self, x: torch.Tensor) -> None:
        """Sum over ranks, in rank order, in place."""
        with mark(Part.SUM) if self.size > 1 else _NOTHING:
            self.inner.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """``[size, *x.shape]``, in rank order."""
        with mark(Part.GATHER) if self.size > 1 else _NOTHING:
            return self.inner.all_gather(x)

    def send_hidden(self, x: torch.Tensor) -> None:
        """Send hidden states to the next stage."""
        with mark(Part.SEND):
            self.inner.send_hidden(x)

    def recv_hidden(self, out: torch.Tensor) -> None:
        """Receive the previous stage's."""
        with mark(Part.RECEIVE):
            self.inner.recv_hidden(out)

    def send_tokens(self, ids: torch.Tensor) -> None:
        """Send ids to stage 0."""
        with mark(Part.SEND):
            self.inner.send_tokens(ids)

    def recv_tokens(self, out: torch.Tensor) -> None:
        """Receive the last stage's."""
        with mark(Part.TOKENS):
            self.inner.recv_tokens(out)

    def abort(self, reason: str) -> None:
        """End the epoch."""
        self.inner.abort(reason)


def marked(communicator: Communicator) -> Communicator:
    """``communicator``, with marks if somebody listens."""
    plain = communicator.inner if isinstance(communicator, MarkedCommunicator) else communicator
    return plain if MARKER.make is None else MarkedCommunicator(plain)
