"""Makes all connections of one rank for one epoch.

Inside a stage the lower rank listens and the higher one dials. A hidden-state edge goes from each rank to the same rank
of the next stage and is dialled by the sender, as is the token edge from the last stage to stage 0. First dial
everything, then collect what the listener has accepted: it accepts in its own thread, so no order can deadlock.
"""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bireme.wire.control import Address
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme_worker.parallel.communicator import Communicator, SoloCommunicator
from bireme_worker.parallel.data_listener import DataListener, EdgeHello, EdgeKind, edge_codec, family_of
from bireme_worker.parallel.errors import PeerLost
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.host_communicator import HostCommunicator
from bireme_worker.parallel.link import Link
from bireme_worker.parallel.socket_communicator import SocketCommunicator

if TYPE_CHECKING:
    from bireme_worker.parallel.exchange import Exchange

RETRY_S: Final = 0.02


@dataclass(frozen=True)
class Place:
    """Where a rank stands: ``rank`` of ``size`` in stage ``stage`` of ``stages``."""

    stage: int
    stages: int
    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Stage 0 embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """The last stage samples."""
        return self.stage == self.stages - 1


@dataclass(frozen=True)
class _Edge:
    kind: EdgeKind
    stage: int
    rank: int
    dials: bool


class Mesh:
    """Connects ``place`` with its peers, whose data addresses are ``data[stage][rank]``.

    ``exchange``: a GPU's open memory, which then carries what the sockets would.
    """

    def __init__(self, place: Place, listener: DataListener, token: bytes, exchange: "Exchange | None" = None) -> None:
        self._exchange = exchange
        self._place = place
        self._listener = listener
        self._token = token

    def connect(self, gate: EpochGate, data: tuple[tuple[Address, ...], ...], limit_s: float) -> Communicator:
        """Return the communicator of ``gate``'s epoch, with all connections up.

        Raises:
            EpochEnded: aborted meanwhile.
            PeerLost: a peer was not there within ``limit_s`` seconds.
        """
        self._listener.begin(gate.epoch)
        deadline = time.monotonic() + limit_s
        edges = list(_edges(self._place))
        if not edges:
            return SoloCommunicator(gate)
        links = {edge: self._dial(edge, gate, data, deadline) for edge in edges if edge.dials}
        links |= {edge: self._take(edge, gate, deadline) for edge in edges if not edge.dials}
        return self._communicator(gate, links)

    def _communicator(self, gate: EpochGate, links: dict[_Edge, Link]) -> Communicator:
        place = self._place
        tensor = {edge.rank: link for edge, link in links.items() if edge.kind == EdgeKind.TENSOR}
        hidden = {edge.stage: link for edge, link in links.items() if edge.kind == EdgeKind.HIDDEN}
        tokens = [link for edge, link in links.items() if edge.kind == EdgeKind.TOKENS]
        sockets = SocketCommunicator(
            gate,
            place.rank,
            tensor,
            next_stage=hidden.get(place.stage + 1),
            previous_stage=hidden.get(place.stage - 1),
            tokens=tokens[0] if tokens else None,
        )
        if self._exchange is None:
            return sockets
        from bireme_worker.parallel import device_communicator as devices  # noqa: PLC0415  needs Triton

        named = {edge: devices.peer_of(edge.kind, edge.stage, place.stage, edge.rank) for edge in links}
        peers = {named[edge]: link for edge, link in links.items()}
        return devices.form(gate, self._exchange, peers, HostCommunicator(sockets))

    def _take(self, edge: _Edge, gate: EpochGate, deadline: float) -> Link:
        hello = EdgeHello(gate.epoch, edge.kind, edge.stage, edge.rank)
        sock = self._listener.take(hello, gate, deadline)
        gate.adopt(sock)
        return Link(sock, gate, _name(edge))

    def _dial(self, edge: _Edge, gate: EpochGate, data: tuple[tuple[Address, ...], ...], deadline: float) -> Link:
        hello = EdgeHello(gate.epoch, edge.kind, self._place.stage, self._place.rank)
        sock = dial(data[edge.stage][edge.rank], gate, deadline, _name(edge))
        channel = SocketChannel(sock, edge_codec)
        try:
            channel.dial(self._token)
            channel.send(hello)
        except WireError as error:
            gate.check()
            raise PeerLost(f"{_name(edge)} refused the connection: {error}") from error
        sock.settimeout(None)
        return Link(sock, gate, _name(edge))


def dial(address: Address, gate: EpochGate, deadline: float, peer: str) -> socket.socket:
    """Connect to ``address``, again and again until ``deadline``: a peer that was just restarted binds a moment later.

    The socket is registered with ``gate`` and has the remaining time as its timeout.

    Raises:
        EpochEnded: aborted meanwhile.
        PeerLost: nobody listened in time.
    """
    while True:
        left = max(deadline - time.monotonic(), RETRY_S)
        sock = socket.socket(family_of(address))
        gate.adopt(sock)
        sock.settimeout(left)
        try:
            sock.connect((address.host, address.port))
        except OSError as error:
            gate.check()
            sock.close()
            if time.monotonic() + RETRY_S >= deadline:
                raise PeerLost(f"{peer} at {address.host}:{address.port} does not answer: {error}") from error
            time.sleep(RETRY_S)
            continue
        return sock


def _edges(place: Place) -> Iterator[_Edge]:
    for other in range(place.size):
        if other != place.rank:
            yield _Edge(EdgeKind.TENSOR, place.stage, other, dials=place.rank > other)
    if place.stages == 1:
        return
    if not place.is_last:
        yield _Edge(EdgeKind.HIDDEN, place.stage + 1, place.rank, dials=True)
    if not place.is_first:
        yield _Edge(EdgeKind.HIDDEN, place.stage - 1, place.rank, dials=False)
    if place.is_last:
        yield _Edge(EdgeKind.TOKENS, 0, place.rank, dials=True)
    if place.is_first:
        yield _Edge(EdgeKind.TOKENS, place.stages - 1, place.rank, dials=False)


def _name(edge: _Edge) -> str:
    return f"stage {edge.stage} rank {edge.rank} ({edge.kind} connection)"
