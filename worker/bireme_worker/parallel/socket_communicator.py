"""The communicator of CPU ranks: plain TCP between processes.

gloo's abort leaves a pending collective blocked and its all-reduce costs 0.5 to 5 ms on two cores. A blocking socket is
freed by shutdown within microseconds, and exchanging whole tensors and adding them in rank order is faster than a ring
at the sizes of a decode step.
"""

import select
from collections.abc import Mapping

import torch

from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.link import Link


class SocketCommunicator:
    """``peers``: one link per other rank of the stage. Links to other stages are there where the stage has them.

    ``next_stage`` and ``previous_stage`` carry hidden states, ``tokens`` the sampled ids (last stage to stage 0).
    """

    captures = False

    def __init__(
        self,
        gate: EpochGate,
        rank: int,
        peers: Mapping[int, Link],
        *,
        next_stage: Link | None = None,
        previous_stage: Link | None = None,
        tokens: Link | None = None,
    ) -> None:
        assert rank not in peers
        self.epoch = gate.epoch
        self.rank = rank
        self.size = len(peers) + 1
        self._gate = gate
        self._peers = [peers[other] for other in sorted(peers)]
        self._order = sorted(peers)
        self._next = next_stage
        self._previous = previous_stage
        self._tokens = tokens
        self._landing: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._space = torch.empty(0, dtype=torch.uint8)

    def all_reduce(self, x: torch.Tensor) -> None:
        self._gate.check()
        if self.size == 1:
            return
        flat = x.view(-1)
        parts = self._parts(flat)
        self._exchange(_bytes(flat), [_bytes(part) for part in parts])
        _add_in_rank_order(flat, parts, self.rank)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self._gate.check()
        gathered = x.new_empty((self.size, *x.shape))
        gathered[self.rank] = x
        if self.size > 1:
            own = gathered[self.rank].view(-1)
            self._exchange(_bytes(own), [_bytes(gathered[other].view(-1)) for other in self._order])
        return gathered

    def send_hidden(self, x: torch.Tensor) -> None:
        assert self._next is not None, "the last stage has no next one"
        self._next.send(_bytes(x.view(-1)))

    def recv_hidden(self, out: torch.Tensor) -> None:
        assert self._previous is not None, "the first stage has no previous one"
        self._previous.receive(_bytes(out.view(-1)))

    def send_tokens(self, ids: torch.Tensor) -> None:
        assert self._tokens is not None, "only the last of several stages sends tokens"
        self._tokens.send(_bytes(ids.view(-1)))

    def recv_tokens(self, out: torch.Tensor) -> None:
        assert self._tokens is not None, "only stage 0 of several stages receives tokens"
        self._tokens.receive(_bytes(out.view(-1)))

    def abort(self, reason: str) -> None:
        self._gate.abort(reason)

    def _exchange(self, own: memoryview, into: list[memoryview]) -> None:
        """Send ``own`` to every peer and fill ``into`` from each, in rank order of the peers."""
        unsent = []
        for link, space in zip(self._peers, into, strict=True):
            link.begin_receive(space)
            link.begin_send(own)
            if not link.push():
                unsent.append(link)
        if unsent:
            self._pump(unsent)
            return
        for link in self._peers:
            while not link.pull(0):
                pass

    def _pump(self, unsent: list[Link]) -> None:
        """Write and read whatever is possible until all is through: more is under way than the kernel buffers hold."""
        sending = {link.sock.fileno(): link for link in unsent}
        receiving = {link.sock.fileno(): link for link in self._peers}
        poll = select.poll()
        for number in receiving:
            poll.register(number, _interest(number, sending, receiving))
        while sending or receiving:
            for number, _ in poll.poll():
                if number in sending and sending[number].push():
                    del sending[number]
                if number in receiving and receiving[number].pull():
                    del receiving[number]
                interest = _interest(number, sending, receiving)
                poll.modify(number, interest) if interest else poll.unregister(number)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Landing space for the peers' tensors, kept: a step has few sizes, and fresh memory costs page faults."""
        key = (flat.numel(), flat.dtype)
        if key not in self._landing:
            size = flat.numel() * flat.element_size()
            if size * len(self._peers) > len(self._space):
                self._space = torch.empty(size * len(self._peers), dtype=torch.uint8)
                self._landing.clear()
            rows = self._space[: size * len(self._peers)].view(len(self._peers), size)
            self._landing[key] = [row.view(flat.dtype) for row in rows]
        return self._landing[key]


def _interest(number: int, sending: Mapping[int, Link], receiving: Mapping[int, Link]) -> int:
    return (select.POLLOUT if number in sending else 0) | (select.POLLIN if number in receiving else 0)


def _bytes(flat: torch.Tensor) -> memoryview:
    return memoryview(flat.view(torch.uint8).numpy().data)


def _add_in_rank_order(x: torch.Tensor, others: list[torch.Tensor], rank: int) -> None:
    """Leave ``x0 + x1 + …`` in ``x``, whose place is ``rank``; ``others`` are the rest in order and are overwritten."""
    if rank > 0:
        total = others[0]
        for other in others[1:rank]:
            total.add_(other)
        torch.add(total, x, out=x)
    for other in others[rank:]:
        x.add_(other)
