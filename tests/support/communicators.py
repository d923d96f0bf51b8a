"""Ranks of one stage as threads, each with a real socket communicator, for tests of what they exchange."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bireme_worker.parallel.communicator import Communicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.link import Link
from bireme_worker.parallel.socket_communicator import SocketCommunicator

T = TypeVar("T")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def linked(near: EpochGate, far: EpochGate) -> tuple[Link, Link]:
    """One connection between two ranks' gates."""
    sockets = tcp_pair()
    for gate, sock in zip((near, far), sockets, strict=True):
        gate.adopt(sock)
    return Link(sockets[0], near, "the far end"), Link(sockets[1], far, "the near end")


def stage_of(gates: Sequence[EpochGate]) -> list[SocketCommunicator]:
    """The communicators of tensor-parallel ranks with these gates."""
    world = len(gates)
    links: list[dict[int, Link]] = [{} for _ in range(world)]
    for low in range(world):
        for high in range(low + 1, world):
            links[low][high], links[high][low] = linked(gates[low], gates[high])
    return [SocketCommunicator(gate, rank, links[rank]) for rank, gate in enumerate(gates)]


def on_all_ranks(world: int, work: Callable[[Communicator], T]) -> list[T]:
    """Run ``work`` on every rank at the same time; results in rank order."""
    gates = [EpochGate(1) for _ in range(world)]
    try:
        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(work, stage_of(gates)))
    finally:
        for gate in gates:
            gate.close()
