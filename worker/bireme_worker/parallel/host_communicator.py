"""GPU tensors over sockets, through the host's memory: between hosts, and wherever GPUs can't reach each other.

Right everywhere, and slow: each call waits for the device. ``DeviceCommunicator`` takes over what it can.
"""

import torch

from bireme_worker.parallel.socket_communicator import SocketCommunicator


class HostCommunicator:
    """``sockets`` for tensors on any device."""

    captures = False

    def __init__(self, sockets: SocketCommunicator) -> None:
        self._sockets = sockets
        self.epoch, self.rank, self.size = sockets.epoch, sockets.rank, sockets.size

    def all_reduce(self, x: torch.Tensor) -> None:
        """Sum over ranks, in rank order, in place; half precision is summed in single."""
        host = x.cpu()
        wide = host.float() if host.dtype.itemsize == 2 else host
        self._sockets.all_reduce(wide)
        x.copy_(wide)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """``[size, *x.shape]``, in rank order."""
        return self._sockets.all_gather(x.cpu()).to(x.device)

    def send_hidden(self, x: torch.Tensor) -> None:
        """Send hidden states to the next stage."""
        self._sockets.send_hidden(x.cpu())

    def recv_hidden(self, out: torch.Tensor) -> None:
        """Receive the previous stage's."""
        host = torch.empty(out.shape, dtype=out.dtype)
        self._sockets.recv_hidden(host)
        out.copy_(host)

    def send_tokens(self, ids: torch.Tensor) -> None:
        """Send ids to stage 0."""
        self._sockets.send_tokens(ids.cpu())

    def recv_tokens(self, out: torch.Tensor) -> None:
        """Receive the last stage's."""
        host = torch.empty(out.shape, dtype=out.dtype)
        self._sockets.recv_tokens(host)
        out.copy_(host)

    def abort(self, reason: str) -> None:
        """End the epoch."""
        self._sockets.abort(reason)
