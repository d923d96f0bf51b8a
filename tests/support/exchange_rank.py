"""A rank that exchanges tensors with one peer, through kernels in Triton's interpreter; a test starts two of these.

Open memory is a mapped file here: its address differs per process, as it does between GPUs. Each rank checks what it
gets and ends with an AssertionError where it is wrong.

    python -m tests.support.exchange_rank --fd 3 --rank 0 --directory /tmp/x --scene sums
"""

import argparse
import ctypes
import mmap
import os
import socket
import threading
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from bireme_worker.parallel.device_communicator import DeviceCommunicator, Peer, form
from bireme_worker.parallel.exchange import NEXT, PREVIOUS, TOKENS, Exchange
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.host_communicator import HostCommunicator
from bireme_worker.parallel.link import Link
from bireme_worker.parallel.socket_communicator import SocketCommunicator
from tests.kernels.conftest import mend_loop_bounds

CPU = torch.device("cpu")
HIDDEN_BYTES, ID_BYTES = 64 << 10, 4096


class FileMemory:
    """Open memory in a file of ``directory``."""

    directory = Path()

    def __init__(self, size: int) -> None:
        self._name = f"memory-{os.getpid()}"
        with (self.directory / self._name).open("w+b") as file:
            file.truncate(size)
        self._size = size
        self._maps: list[mmap.mmap] = []
        self.address = self.open(self.handle())

    def clear(self) -> None:
        ctypes.memset(self.address, 0, self._size)

    def handle(self) -> bytes:
        return self._name.encode().ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        with (self.directory / handle.rstrip(b"\0").decode()).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        self._maps.append(mapped)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapped))

    @classmethod
    def of_another(cls) -> torch.Tensor:
        """The bytes of the other process's memory as they are now."""
        (file,) = (file for file in cls.directory.glob("memory-*") if file.name != f"memory-{os.getpid()}")
        return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)

    def close(self, address: int) -> None:
        """Mapped until the process ends."""


class Pair:
    """This rank and its ``peer`` over ``sock``; one epoch after the other."""

    def __init__(self, sock: socket.socket, rank: int, size: int, peers: tuple[Peer, ...]) -> None:
        self._sock = sock
        self._peers = peers
        self.exchange = Exchange(rank, size, hidden=HIDDEN_BYTES, ids=ID_BYTES, device=CPU, allocate=FileMemory)
        self._epoch = 0

    def form(self) -> tuple[DeviceCommunicator, EpochGate]:
        self._epoch += 1
        gate = EpochGate(self._epoch)
        link = Link(self._sock, gate, "the peer")
        sockets = SocketCommunicator(gate, self.exchange.rank, {})
        return form(gate, self.exchange, dict.fromkeys(self._peers, link), HostCommunicator(sockets)), gate


def sums(sock: socket.socket, rank: int) -> None:
    """Sums and gathers of every dtype and of sizes around the borders, over two epochs."""
    pair = Pair(sock, rank, 2, (1 - rank,))
    for epoch in (1, 2):
        communicator, _ = pair.form()
        assert communicator.captures
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in (1, 5000):
                both = [_values(count, dtype, seed=epoch + number) for number in range(2)]
                mine = both[rank].clone()
                communicator.all_reduce(mine)
                wide = torch.float32 if dtype == torch.bfloat16 else dtype
                wrong = (mine.to(wide) - (both[0].to(wide) + both[1].to(wide))).abs()
                # The interpreter cuts to bfloat16 where a GPU rounds: up to a unit in the last of 8 bits.
                assert (wrong <= mine.to(wide).abs() * (2**-7 if dtype == torch.bfloat16 else 0)).all(), (dtype, count)
                assert torch.equal(communicator.all_gather(both[rank]), torch.stack(both)), (dtype, count)
        pair.exchange.leave()


def stages(sock: socket.socket, rank: int) -> None:
    """Hidden states one way, ids the other: more than the rings hold, the ids padded behind what is read."""
    pair = Pair(sock, 0, 1, (NEXT if rank == 0 else PREVIOUS, TOKENS))
    for _ in range(2):
        communicator, _ = pair.form()
        assert communicator.captures
        for step, rows in enumerate((1, 40, 3)):
            hidden = _values(rows * 64, torch.bfloat16, seed=step).view(rows, 64)
            ids = torch.arange(rows) + 1000 * step
            if rank == 0:
                communicator.send_hidden(hidden)
                drawn = torch.empty_like(ids)
                communicator.recv_tokens(drawn)
                assert torch.equal(drawn, ids), step
            else:
                got = torch.empty_like(hidden)
                communicator.recv_hidden(got)
                assert torch.equal(got, hidden), step
                communicator.send_tokens(torch.cat((ids, torch.zeros(5, dtype=torch.int64))))
        pair.exchange.leave()


def alone(sock: socket.socket, rank: int) -> None:
    """Rank 0 sums while its peer does not come: an abort from another thread frees it, and the next epoch is right."""
    pair = Pair(sock, rank, 2, (1 - rank,))
    communicator, gate = pair.form()
    if rank == 0:
        threading.Timer(0.3, gate.abort, ("the test says so",)).start()
        communicator.all_reduce(torch.ones(8))
        assert gate.aborted, "nothing else could have ended it"
    pair.exchange.leave()
    communicator, _ = pair.form()
    x = torch.full((5000,), float(rank + 1))
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((5000,), 3.0))


def late(sock: socket.socket, rank: int) -> None:
    """Rank 1 forms the next epoch while rank 0 may still read what it laid out for the last: it stays until both did."""
    pair = Pair(sock, rank, 2, (1 - rank,))
    communicator, _ = pair.form()
    communicator.all_reduce(torch.full((5000,), 1.0))
    if rank == 0:
        sock.recv(1, socket.MSG_PEEK)  # rank 1 is forming
        assert FileMemory.of_another().any(), "cleared under a reader"
    pair.exchange.leave()
    pair.form()


def _values(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 100
    return drawn.to(dtype)


SCENES = {"sums": sums, "stages": stages, "alone": alone, "late": late}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--scene", choices=SCENES, required=True)
    arguments = parser.parse_args()
    FileMemory.directory = arguments.directory
    mend_loop_bounds()
    SCENES[arguments.scene](socket.socket(fileno=arguments.fd), arguments.rank)


if __name__ == "__main__":
    main()
