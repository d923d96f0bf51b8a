"""This GPU's half of every transfer: its open memory, the table of peers, counters and the abort word.

Lives as long as the rank, because captured graphs hold its addresses; an epoch only rewrites the tables. Until
``join`` every table names this rank alone and the abort word is set: captured or launched then, a transfer ends at
once and signals nobody.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import torch
import triton

from bireme_worker.kernels.exchange import BLOCK_BYTES, MOST_PARTS, WIDE_BLOCK_BYTES, post, share, take
from bireme_worker.parallel.device_memory import DeviceMemory, OpenMemory

SHARE_BYTES: Final = 32 << 20
"""What all ranks of a stage together sum in one go."""
HIDDEN_PLACES: Final = 2
TOKEN_PLACES: Final = 128
"""More than the steps whose ids stage 0 may leave unread (``rank/runner.py``)."""
TENSOR, NEXT, PREVIOUS, TOKENS = "tensor", "next", "previous", "tokens"
"""The edges of a rank: sums inside its stage; hidden states to the next stage, from the previous one; sampled ids."""


@dataclass(frozen=True)
class Box:
    """A ring in the receiver's memory: where it lies, and the words of both sides."""

    at: int
    arrived_at: int
    taken_at: int
    stride: int
    parts: int
    places: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.taken_at + 4 * self.parts

    @classmethod
    def behind(cls, at: int, size: int, parts: int, places: int) -> "Box":
        """A ring of ``places`` transfers of up to ``size`` bytes."""
        stride = -(-size // (parts * BLOCK_BYTES)) * BLOCK_BYTES
        words_at = at + places * parts * stride
        return cls(at, words_at, words_at + 4 * parts, stride, parts, places)


class Exchange:
    """``rank`` of ``size``; up to ``hidden`` bytes of hidden states and ``ids`` bytes of ids go between stages."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        hidden: int,
        ids: int,
        device: torch.device,
        allocate: Callable[[int], OpenMemory] = DeviceMemory,
    ) -> None:
        self.rank, self.size = rank, size
        self._stride = _up(SHARE_BYTES // (size * MOST_PARTS), WIDE_BLOCK_BYTES)
        self._words_at = 2 * size * MOST_PARTS * self._stride if size > 1 else 0
        end = self._words_at + 4 * size * MOST_PARTS
        self._hidden = Box.behind(_aligned(end), hidden, MOST_PARTS, HIDDEN_PLACES)
        # Ids in one part: a captured step sends padding behind its ids, and the reader takes fewer than were sent.
        self._ids = Box.behind(_aligned(self._hidden.end), ids, 1, TOKEN_PLACES)
        self._memory = allocate(_aligned(self._ids.end))
        self._turns = torch.zeros((4, MOST_PARTS), dtype=torch.int32, device=device)
        self._peers = torch.zeros(size, dtype=torch.int64, device=device)
        self._edges = torch.zeros((3, 2), dtype=torch.int64, device=device)
        word = torch.ones(1, dtype=torch.int32)
        self._abort = word.pin_memory() if device.type == "cuda" else word
        self._halted = torch.ones(1, dtype=torch.int32, device=device)
        self._opened: dict[bytes, int] = {}
        self.leave()

    def handle(self) -> bytes:
        """What peers open."""
        return self._memory.handle()

    def abort(self) -> None:
        """Let every spin go, from any thread."""
        self._abort.fill_(1)

    def leave(self) -> None:
        """After the device is idle: alone again, and every transfer ends at its first look."""
        self.abort()
        self._halted.fill_(1)
        self._peers.fill_(self._memory.address)
        self._edges.fill_(self._memory.address)

    def prepare(self) -> None:
        """Zero counters and words. Before a peer gets the handle: from then on it may write here."""
        self._memory.clear()
        self._turns.zero_()
        if self._turns.is_cuda:
            torch.cuda.synchronize()

    def open(self, handle: bytes) -> int:
        """The address of a peer's memory here; a peer that stayed is not opened twice.

        Raises:
            PeerMemoryError: it can't be reached.
        """
        if handle not in self._opened:
            self._opened[handle] = self._memory.open(handle)
        return self._opened[handle]

    def keep(self, handles: Collection[bytes]) -> None:
        """Close the memory of all other peers; the device is idle."""
        for handle in self._opened.keys() - set(handles):
            self._memory.close(self._opened.pop(handle))

    def join(self, peers: Mapping[int | str, int]) -> None:
        """Write the tables and take the abort word back."""
        own = self._memory.address
        self._peers.copy_(torch.tensor([peers.get(rank, own) for rank in range(self.size)]))
        self._edges.copy_(torch.tensor([(own, peers.get(edge, own)) for edge in (NEXT, PREVIOUS, TOKENS)]))
        self._halted.zero_()
        if self._turns.is_cuda:
            torch.cuda.synchronize()
        self._abort.fill_(0)

    def all_reduce(self, x: torch.Tensor) -> None:
        """Sum over ranks, in rank order, in place."""
        flat = x.view(-1)
        most = MOST_PARTS * self._stride // x.element_size()
        for part in torch.split(flat, most):
            self._share(part, part, gather=False)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """``[size, *x.shape]``, in rank order."""
        assert x.numel() * x.element_size() <= MOST_PARTS * self._stride, "all_gather is for small tensors"
        out = x.new_empty((self.size, *x.shape))
        self._share(x.view(-1), out, gather=True)
        return out

    def send(self, x: torch.Tensor, edge: str) -> None:
        """Lay hidden states or ids into the box of the peer of ``edge``."""
        self._carry(post, x, edge, 1 if edge == NEXT else 3)

    def receive(self, out: torch.Tensor, edge: str) -> None:
        """Fill ``out`` from one's own box."""
        self._carry(take, out, edge, 2 if edge == PREVIOUS else 3)

    def _share(self, x: torch.Tensor, out: torch.Tensor, *, gather: bool) -> None:
        even = triton.next_power_of_2(-(-x.numel() * x.element_size() // MOST_PARTS))
        block = min(max(even, BLOCK_BYTES), WIDE_BLOCK_BYTES) // x.element_size()
        parts, tiles = _cut(x.numel(), block, MOST_PARTS)
        share[(parts,)](
            x, out, self._peers, self._turns[0], self._abort, self._halted, x.numel(), tiles,
            stride=self._stride, words_at=self._words_at, rank=self.rank, world=self.size, parts=MOST_PARTS,
            block=block, gather=gather, num_warps=8,
        )  # fmt: skip

    def _carry(self, kernel: object, tensor: torch.Tensor, edge: str, turns: int) -> None:
        words = tensor.view(-1).view(torch.int32)
        box = self._ids if edge == TOKENS else self._hidden
        block = BLOCK_BYTES // 4
        parts, tiles = _cut(words.numel(), block, box.parts)
        assert tiles * BLOCK_BYTES <= box.stride, f"{words.numel() * 4} bytes are more than the box takes"
        kernel[(parts,)](  # type: ignore[index]
            words, self._edges[(NEXT, PREVIOUS, TOKENS).index(edge)], self._turns[turns], self._abort,
            self._halted, words.numel(), tiles,
            box_at=box.at, arrived_at=box.arrived_at, taken_at=box.taken_at, stride=box.stride, parts=box.parts,
            places=box.places, block=block, num_warps=8,
        )  # fmt: skip


def _cut(elements: int, block: int, most: int) -> tuple[int, int]:
    """Parts, and blocks of each."""
    blocks = max(-(-elements // block), 1)
    tiles = -(-blocks // most)
    return -(-blocks // tiles), tiles


def _aligned(at: int) -> int:
    return _up(at, 256)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
