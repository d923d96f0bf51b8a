"""How a rank finds its peers for an epoch, and whom it turns away."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bireme.wire.control import Address
from bireme.wire.frames import SocketChannel
from bireme_worker.parallel.communicator import Communicator
from bireme_worker.parallel.data_listener import DataListener, EdgeHello, EdgeKind, PortInUse, edge_codec
from bireme_worker.parallel.errors import EpochEnded, PeerLost
from bireme_worker.parallel.mesh import Mesh, Place
from tests.rank.conftest import MakeGate
from tests.support.rank_threads import TOKEN, loopback_host

PORT = 8010


@pytest.fixture
def listener() -> Iterator[DataListener]:
    one = DataListener(Address(loopback_host(), PORT), TOKEN)
    yield one
    one.close()


def dial(listener: DataListener, hello: EdgeHello, token: bytes = TOKEN) -> SocketChannel[EdgeHello]:
    sock = socket.create_connection((listener.address.host, listener.address.port))
    channel = SocketChannel(sock, edge_codec)
    channel.dial(token)
    channel.send(hello)
    return channel


def is_closed(channel: SocketChannel[EdgeHello]) -> bool:
    channel.sock.settimeout(5)
    return channel.sock.recv(1) == b""


def hello(epoch: int, rank: int = 1) -> EdgeHello:
    return EdgeHello(epoch, EdgeKind.TENSOR, 0, rank)


def test_all_edges_of_a_group_connect_and_carry_data(make_gate: MakeGate) -> None:
    places = [Place(stage, 3, rank, 2) for stage in range(3) for rank in range(2)]
    hosts = [loopback_host() for _ in range(3)]
    data = tuple(tuple(Address(host, PORT + rank) for rank in range(2)) for host in hosts)
    listeners = [DataListener(data[place.stage][place.rank], TOKEN) for place in places]
    gates = [make_gate(4) for _ in places]

    def work(number: int) -> tuple[float, int]:
        place = places[number]
        communicator: Communicator = Mesh(place, listeners[number], TOKEN).connect(gates[number], data, limit_s=20)
        x = torch.full((1,), 1.0)
        if not place.is_first:
            communicator.recv_hidden(x)
        communicator.all_reduce(x)
        ids = torch.tensor([place.rank])
        if place.is_last:
            communicator.send_tokens(ids)
        else:
            communicator.send_hidden(x)
        if place.is_first:
            communicator.recv_tokens(ids)
        return float(x), int(ids)

    with ThreadPoolExecutor(len(places)) as pool:
        results = list(pool.map(work, range(len(places))))
    assert [x for x, _ in results] == [2.0, 2.0, 4.0, 4.0, 8.0, 8.0]
    assert [ids for _, ids in results[:2]] == [0, 1]
    for listener in listeners:
        listener.close()


def test_a_connection_for_a_coming_epoch_waits_until_this_rank_gets_there(
    listener: DataListener, make_gate: MakeGate
) -> None:
    channel = dial(listener, hello(9))
    sock = listener.take(hello(9), make_gate(9), time.monotonic() + 10)
    assert sock.gettimeout() is None
    sock.close()
    channel.close()


def test_what_waits_for_an_older_epoch_is_closed_when_a_newer_one_begins(
    listener: DataListener, make_gate: MakeGate
) -> None:
    old, new = dial(listener, hello(9)), dial(listener, hello(10))
    listener.begin(10)
    late = dial(listener, hello(9))
    assert is_closed(old)
    assert is_closed(late)
    listener.take(hello(10), make_gate(10), time.monotonic() + 10).close()
    for channel in (old, new, late):
        channel.close()


def test_a_stranger_without_the_token_is_turned_away(listener: DataListener) -> None:
    sock = socket.create_connection((listener.address.host, listener.address.port))
    channel = SocketChannel(sock, edge_codec)
    stranger_token = bytes(32)
    with pytest.raises(Exception, match=r"closed|token"):
        channel.dial(stranger_token)
    channel.close()


def test_a_silent_connection_keeps_nobody_waiting(listener: DataListener, make_gate: MakeGate) -> None:
    silent = socket.create_connection((listener.address.host, listener.address.port))
    channel = dial(listener, hello(1))
    listener.take(hello(1), make_gate(1), time.monotonic() + 2).close()
    channel.close()
    silent.close()


def test_a_peer_that_never_comes_is_named(listener: DataListener, make_gate: MakeGate) -> None:
    place = Place(0, 1, 0, 2)
    data = ((listener.address, Address(listener.address.host, PORT + 1)),)
    with pytest.raises(PeerLost, match="stage 0 rank 1 did not connect for epoch 1"):
        Mesh(place, listener, TOKEN).connect(make_gate(1), data, limit_s=0.1)


def test_a_peer_that_does_not_listen_is_named_with_its_address(listener: DataListener, make_gate: MakeGate) -> None:
    nobody = Address(loopback_host(), PORT)
    with pytest.raises(PeerLost, match=f"stage 0 rank 0 .* at {nobody.host}:{PORT} does not answer"):
        Mesh(Place(0, 1, 1, 2), listener, TOKEN).connect(make_gate(1), ((nobody, listener.address),), limit_s=0.1)


@pytest.mark.parametrize("rank", [0, 1], ids=["waiting for a dial", "dialling a peer that never answers"])
def test_the_end_of_the_epoch_frees_a_rank_that_is_still_forming(
    listener: DataListener, make_gate: MakeGate, rank: int
) -> None:
    with socket.create_server((loopback_host(), PORT)) as deaf:
        host, port = deaf.getsockname()[:2]
        peer = Address(host, port)
        data = ((listener.address, peer) if rank == 0 else (peer, listener.address),)
        gate = make_gate(1)
        threading.Timer(0.1, gate.abort, ("End",)).start()
        with pytest.raises(EpochEnded, match="epoch 1 has ended: End"):
            Mesh(Place(0, 1, rank, 2), listener, TOKEN).connect(gate, data, limit_s=60)


def test_a_taken_port_is_refused_with_its_address_and_the_remedy(listener: DataListener) -> None:
    with pytest.raises(PortInUse, match=f"can't listen on {listener.address.host}:{PORT} .*end the process that uses"):
        DataListener(listener.address, TOKEN)
