"""The communicator of GPU ranks: every edge through open device memory where both sides can, else through the host.

Formed over the epoch's sockets. Each side first says that its device is idle: until then it may still read and write
the other's memory for the epoch before. Then memory is cleared, handles go both ways, each side opens the other's and
says whether it could. An edge is taken only when both could, so both sides always use the same way.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

import torch

from bireme_worker.parallel.data_listener import EdgeKind
from bireme_worker.parallel.device_memory import HANDLE_BYTES, PeerMemoryError
from bireme_worker.parallel.exchange import NEXT, PREVIOUS, TENSOR, TOKENS, Exchange
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.host_communicator import HostCommunicator
from bireme_worker.parallel.link import Link

log = logging.getLogger(__name__)

IDLE: Final = b"\1"
Peer = int | str
"""A rank of the same stage, or an edge to another stage."""


class DeviceCommunicator:
    """``direct``: the edges that go through device memory. With all of them, captured steps can be replayed."""

    def __init__(
        self,
        gate: EpochGate,
        exchange: Exchange,
        host: HostCommunicator | None,
        direct: Collection[str],
        *,
        captures: bool,
    ) -> None:
        self.captures = captures
        self._gate = gate
        self._exchange = exchange
        self._host = host
        self._direct = direct
        self.epoch, self.rank, self.size = gate.epoch, exchange.rank, exchange.size

    def all_reduce(self, x: torch.Tensor) -> None:
        """Sum over ranks, in rank order, in place."""
        self._gate.check()
        if self.size == 1:
            return
        if TENSOR in self._direct:
            self._exchange.all_reduce(x)
        else:
            self._slow.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """``[size, *x.shape]``, in rank order."""
        self._gate.check()
        if self.size == 1:
            return x.unsqueeze(0)
        return self._exchange.all_gather(x) if TENSOR in self._direct else self._slow.all_gather(x)

    def send_hidden(self, x: torch.Tensor) -> None:
        """Send hidden states to the next stage."""
        self._gate.check()
        if NEXT in self._direct:
            self._exchange.send(x, NEXT)
        else:
            self._slow.send_hidden(x)

    def recv_hidden(self, out: torch.Tensor) -> None:
        """Receive the previous stage's."""
        self._gate.check()
        if PREVIOUS in self._direct:
            self._exchange.receive(out, PREVIOUS)
        else:
            self._slow.recv_hidden(out)

    def send_tokens(self, ids: torch.Tensor) -> None:
        """Send ids to stage 0."""
        self._gate.check()
        if TOKENS in self._direct:
            self._exchange.send(ids, TOKENS)
        else:
            self._slow.send_tokens(ids)

    def recv_tokens(self, out: torch.Tensor) -> None:
        """Receive the last stage's."""
        self._gate.check()
        if TOKENS in self._direct:
            self._exchange.receive(out, TOKENS)
        else:
            self._slow.recv_tokens(out)

    def abort(self, reason: str) -> None:
        """End the epoch."""
        self._gate.abort(reason)

    @property
    def _slow(self) -> HostCommunicator:
        assert self._host is not None, "this edge goes through device memory"
        return self._host


def alone(gate: EpochGate, exchange: Exchange) -> DeviceCommunicator:
    """Before any epoch: every transfer ends at once and reaches nobody. Steps are captured with it."""
    return DeviceCommunicator(gate, exchange, None, {TENSOR, NEXT, PREVIOUS, TOKENS}, captures=True)


def peer_of(kind: EdgeKind, stage: int, own_stage: int, rank: int) -> Peer:
    """The name of the edge to ``rank`` of ``stage``."""
    if kind == EdgeKind.TENSOR:
        return rank
    return TOKENS if kind == EdgeKind.TOKENS else NEXT if stage > own_stage else PREVIOUS


def form(gate: EpochGate, exchange: Exchange, links: Mapping[Peer, Link], host: HostCommunicator) -> DeviceCommunicator:
    """Form over ``links``. This rank's device is idle.

    Raises:
        EpochEnded: aborted meanwhile, or a peer was lost.
    """
    gate.on_abort(exchange.abort)
    _swap(links, dict.fromkeys(links, IDLE), len(IDLE))
    exchange.prepare()
    handles = _swap(links, dict.fromkeys(links, exchange.handle()), HANDLE_BYTES)
    exchange.keep(handles.values())
    opened: dict[Peer, int] = {}
    for peer, handle in handles.items():
        try:
            opened[peer] = exchange.open(handle)
        except PeerMemoryError as error:
            log.warning(f"{links[peer].peer} is reached through the host's memory, which is slow: {error}")
    answers = _swap(links, {peer: bytes([peer in opened]) for peer in links}, 1)
    both = {peer for peer, answer in answers.items() if answer == b"\1" and peer in opened}
    ranks: set[Peer] = {peer for peer in links if isinstance(peer, int)}
    direct = {peer for peer in both if isinstance(peer, str)}
    # A sum has one way for all ranks.
    direct |= {TENSOR} if _all_ranks(links, ranks, mine=ranks <= both) else set()
    exchange.join({peer: opened[peer] for peer in both})
    gate.check()
    captures = direct == {TENSOR, *(peer for peer in links if isinstance(peer, str))}
    return DeviceCommunicator(gate, exchange, host, direct, captures=captures)


def _all_ranks(links: Mapping[Peer, Link], ranks: set[Peer], *, mine: bool) -> bool:
    """Whether every rank of the stage says yes."""
    answers = _swap({rank: links[rank] for rank in ranks}, dict.fromkeys(ranks, bytes([mine])), 1)
    return mine and all(answer == b"\1" for answer in answers.values())


def _swap(links: Mapping[Peer, Link], mine: Mapping[Peer, bytes], size: int) -> dict[Peer, bytes]:
    """Send each peer its message and return theirs; the messages are small enough for any socket."""
    for peer, link in links.items():
        link.send(memoryview(mine[peer]))
    theirs = {}
    for peer, link in links.items():
        space = bytearray(size)
        link.receive(memoryview(space))
        theirs[peer] = bytes(space)
    return theirs
