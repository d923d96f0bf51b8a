"""What the model and the sampler see of other ranks: a handful of operations, bound to one epoch.

Nothing here knows torch.distributed. A communicator lives as long as its epoch; `abort` frees a blocked call at once
and every later call raises EpochEnded, so survivors keep their weights and wait for the next communicator.
"""

from typing import Protocol

import torch

from bireme_worker.parallel.gate import EpochGate


class Communicator(Protocol):
    """``rank`` of ``size`` tensor-parallel ranks of one stage, with edges to the neighbouring stages.

    Every call may raise EpochEnded (or its subclasses PeerLost, FrameMismatch). Tensors are contiguous. All ranks of a
    stage make the same calls in the same order; one thread makes them.
    """

    epoch: int
    rank: int
    size: int
    captures: bool
    """Whether a captured step, which holds these operations, may be replayed."""

    def all_reduce(self, x: torch.Tensor) -> None:
        """Replace ``x`` by the sum over ranks, added in rank order, so that all ranks hold the same bits."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[size, *x.shape]``, the ``x`` of every rank in rank order. For small tensors."""
        ...

    def send_hidden(self, x: torch.Tensor) -> None:
        """Send hidden states to the same rank of the next stage."""
        ...

    def recv_hidden(self, out: torch.Tensor) -> None:
        """Fill ``out`` with the hidden states that the previous stage sent."""
        ...

    def send_tokens(self, ids: torch.Tensor) -> None:
        """Send sampled ids from the last stage to the same rank of stage 0."""
        ...

    def recv_tokens(self, out: torch.Tensor) -> None:
        """Fill ``out`` with the next sampled ids, in step order."""
        ...

    def abort(self, reason: str) -> None:
        """End the epoch; for any thread."""
        ...


class SoloCommunicator:
    """A group of one stage and one rank: nothing to exchange, but an epoch all the same."""

    rank = 0
    size = 1
    captures = True

    def __init__(self, gate: EpochGate) -> None:
        self._gate = gate
        self.epoch = gate.epoch

    def all_reduce(self, x: torch.Tensor) -> None:  # noqa: ARG002
        self._gate.check()

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self._gate.check()
        return x.unsqueeze(0)

    def send_hidden(self, x: torch.Tensor) -> None:  # noqa: ARG002
        raise AssertionError("a single stage has no next one")

    recv_hidden = send_tokens = recv_tokens = send_hidden

    def abort(self, reason: str) -> None:
        self._gate.abort(reason)
