"""A rank's data port: connections of its peers come in here and wait until this rank forms their epoch.

The listener lives as long as the process. A peer may form an epoch a moment before this rank does, so connections are
kept by epoch; those of an older epoch than the current one are closed.
"""

import socket
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from bireme.wire.control import Address
from bireme.wire.errors import WireError
from bireme.wire.frames import Codec, SocketChannel
from bireme_worker.parallel.errors import PeerLost
from bireme_worker.parallel.gate import EpochGate

HANDSHAKE_LIMIT_S: Final = 3.0
"""Seconds that a peer has to prove the token and say who it is."""


class EdgeKind(StrEnum):
    """What a connection is for."""

    TENSOR = "Tensor"
    HIDDEN = "Hidden"
    TOKENS = "Tokens"


class EdgeHello(msgspec.Struct, frozen=True, tag=True):
    """First frame on a data connection: which edge of which epoch, from which stage and rank."""

    epoch: int
    kind: EdgeKind
    stage: int
    rank: int


edge_codec: Codec[EdgeHello] = Codec(EdgeHello, 4096)


def family_of(address: Address) -> socket.AddressFamily:
    """A pod may have an IPv6 address only."""
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


class PortInUse(Exception):
    """The data port is taken: another pod uses this address."""


@dataclass
class _Waiting:
    hello: EdgeHello
    sock: socket.socket


class DataListener:
    """Listens on ``address`` from construction on.

    Raises:
        PortInUse: the address is taken or not of this host; the message names it.
    """

    def __init__(self, address: Address, token: bytes) -> None:
        self.address = address
        self._token = token
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._oldest = 0
        try:
            self._socket = socket.create_server((address.host, address.port), family=family_of(address), backlog=64)
        except OSError as error:
            raise PortInUse(
                f"can't listen on {address.host}:{address.port} ({error.strerror}): end the process that uses it "
                "or give this pod an address of its own"
            ) from error
        self._thread = threading.Thread(target=self._accept, name="data-listener", daemon=True)
        self._thread.start()

    def begin(self, epoch: int) -> None:
        """Close what waits for an older epoch, and refuse such connections from now on."""
        with self._changed:
            self._oldest = epoch
            for stale in [one for one in self._waiting if one.hello.epoch < epoch]:
                self._waiting.remove(stale)
                stale.sock.close()

    def take(self, hello: EdgeHello, gate: EpochGate, deadline: float) -> socket.socket:
        """Return the connection that said ``hello``, waiting for it until ``deadline`` (monotonic seconds).

        Raises:
            EpochEnded: the epoch was aborted meanwhile.
            PeerLost: nobody came in time.
        """
        gate.on_abort(self._wake)
        with self._changed:
            while True:
                gate.check()
                found = [one for one in self._waiting if one.hello == hello]
                if found:
                    self._waiting.remove(found[-1])
                    return found[-1].sock
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PeerLost(f"stage {hello.stage} rank {hello.rank} did not connect for epoch {hello.epoch}")
                self._changed.wait(left)

    def close(self) -> None:
        """Stop listening and close what waits."""
        self._socket.shutdown(socket.SHUT_RDWR)  # frees the thread in accept, which close would not
        self._thread.join()
        self._socket.close()
        with self._changed:
            while self._waiting:
                self._waiting.pop().sock.close()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return  # closed
            # A thread of its own: a peer that says nothing must not keep the others waiting.
            threading.Thread(target=self._welcome, args=(sock,), name="data-handshake", daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        sock.settimeout(HANDSHAKE_LIMIT_S)
        channel = SocketChannel(sock, edge_codec)
        try:
            channel.accept(self._token)
            hello = channel.receive()
        except WireError:
            channel.close()
            return
        sock.settimeout(None)
        with self._changed:
            if hello.epoch < self._oldest:
                channel.close()
                return
            self._waiting.append(_Waiting(hello, sock))
            self._changed.notify_all()
