"""Loopback addresses: none twice, none that is in use, and a clear word when a port is taken everywhere."""

import socket
from collections.abc import Iterator

import pytest

from bireme_operator.local.addresses import Addresses, draw_address
from bireme_operator.local.errors import PortTaken


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    sock = socket.create_server(("127.64.0.1", 0))
    yield sock
    sock.close()


def test_addresses_are_drawn_from_a_part_of_the_loopback_net_that_nobody_else_uses() -> None:
    assert all(64 <= int(draw_address().split(".")[1]) <= 127 for _ in range(200))


def test_no_address_is_given_twice_until_it_comes_back() -> None:
    drawn = iter(["127.64.0.2", "127.64.0.2", "127.64.0.3", "127.64.0.2"])
    addresses = Addresses([], draw=lambda: next(drawn))
    assert [addresses.take(), addresses.take()] == ["127.64.0.2", "127.64.0.3"]
    addresses.give_back("127.64.0.2")
    assert addresses.take() == "127.64.0.2"


def test_an_address_on_which_somebody_listens_is_passed_over(listener: socket.socket) -> None:
    drawn = iter(["127.64.0.1", "127.64.0.2"])
    assert Addresses([listener.getsockname()[1]], draw=lambda: next(drawn)).take() == "127.64.0.2"


def test_a_port_that_is_taken_wherever_it_is_tried_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(PortTaken, match=f"port {port} is in use on every loopback address.*sport = :{port}"):
        Addresses([port], draw=lambda: "127.64.0.1").take()
