"""One connection of an epoch: frames with a 24-byte header over a blocking TCP socket.

The header carries epoch, sequence number and size, so two ranks that disagree about a step get an error with both
numbers instead of garbage or a crash. Sending and receiving can be begun separately and pushed on piece by piece: two
ranks that send each other more than the kernel buffers hold must read while they write.
"""

import socket
import struct
from typing import Final

from bireme_worker.parallel.errors import FrameMismatch, PeerLost
from bireme_worker.parallel.gate import EpochGate

_HEADER: Final = struct.Struct("<QQQ")
_SEND_BUFFER: Final = 2 << 20
"""Bytes, if the kernel allows: a prefill step's tensor fits, so a sender goes on while its peer still computes."""


class Link:
    """``peer`` is a name for messages. One thread uses a link; another may only abort the gate."""

    def __init__(self, sock: socket.socket, gate: EpochGate, peer: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.sock = sock
        self.peer = peer
        self._gate = gate
        self._sent = 0
        self._received = 0
        self._out: list[memoryview] = []
        self._header = bytearray(_HEADER.size)
        self._header_rest = memoryview(b"")
        self._body_rest = memoryview(b"")

    def send(self, payload: memoryview) -> None:
        """Send one frame; blocks while the peer has no room.

        Raises:
            EpochEnded: the epoch was aborted.
            PeerLost: the connection broke.
        """
        self.begin_send(payload)
        while not self.push(0):
            pass

    def receive(self, into: memoryview) -> None:
        """Fill ``into`` with the next frame; blocks.

        Raises:
            EpochEnded: the epoch was aborted.
            PeerLost: the connection broke.
            FrameMismatch: the frame is of another epoch, number or size.
        """
        self.begin_receive(into)
        while not self.pull(0):
            pass

    def begin_send(self, payload: memoryview) -> None:
        """Start a frame; ``push`` until it is out."""
        header = _HEADER.pack(self._gate.epoch, self._sent, len(payload))
        self._sent += 1
        self._out = [memoryview(header), payload]

    def push(self, flags: int = socket.MSG_DONTWAIT) -> bool:
        """Send what the kernel takes; True when the whole frame is out."""
        try:
            count = self.sock.sendmsg(self._out, (), flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(str(error)) from error
        while self._out and count >= len(self._out[0]):
            count -= len(self._out.pop(0))
        if self._out:
            self._out[0] = self._out[0][count:]
        return not self._out

    def begin_receive(self, into: memoryview) -> None:
        """Expect a frame; ``pull`` until it is in."""
        self._header_rest = memoryview(self._header)
        self._body_rest = into

    def pull(self, flags: int = socket.MSG_DONTWAIT) -> bool:
        """Receive what is there, with ``flags`` 0 at least something; True when the whole frame is in."""
        try:
            count = self.sock.recvmsg_into([self._header_rest, self._body_rest], 0, flags)[0]
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(str(error)) from error
        if count == 0:
            raise self._lost("it closed the connection")
        return self._took(count)

    def _took(self, count: int) -> bool:
        of_header = min(count, len(self._header_rest))
        if of_header:
            self._header_rest = self._header_rest[of_header:]
            if not self._header_rest:
                self._check_header()
        self._body_rest = self._body_rest[count - of_header :]
        return not self._header_rest and not self._body_rest

    def _check_header(self) -> None:
        got = _HEADER.unpack(self._header)
        # recvmsg_into may have filled the start of the body already: its size is what is expected of this frame.
        expected = (self._gate.epoch, self._received, len(self._body_rest))
        self._received += 1
        if got != expected:
            words = "epoch {}, frame {}, {} bytes"
            raise FrameMismatch(f"{self.peer} sent {words.format(*got)}; expected {words.format(*expected)}")

    def _lost(self, why: str) -> PeerLost:
        self._gate.check()
        return PeerLost(f"lost {self.peer}: {why}")
