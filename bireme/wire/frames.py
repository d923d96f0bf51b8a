"""Frames and the challenge that opens a connection.

A frame is a four-byte big-endian length and that many bytes of MessagePack. A connection starts with a mutual
challenge: both sides prove the group token by HMAC-SHA256 over both nonces, so neither token nor proof can be replayed.
The listening side speaks first. Works over blocking sockets (ranks) and asyncio streams (everything else).
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
from typing import Final, Generic, TypeVar

import msgspec

from bireme.wire import WIRE_VERSION
from bireme.wire.errors import ConnectionLost, FrameTooLarge, Garbled, WireError, WrongToken, WrongVersion

MAX_FRAME: Final = 64 * 1024 * 1024
"""Bytes; the largest legal frame is a plan that admits a full slot table of long prompts."""
HANDSHAKE_LIMIT: Final = 4096
"""Bytes; before the token is proved, nobody can make us allocate more than this."""
_LENGTH: Final = struct.Struct(">I")
_NONCE_BYTES: Final = 32

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes the messages of one conversation; ``kinds`` is their tagged union."""

    def __init__(self, kinds: object, limit: int = MAX_FRAME) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(type=kinds)
        self.limit = limit

    def frame(self, message: T) -> bytes:
        """Return length prefix and body.

        Raises:
            FrameTooLarge: the encoded message exceeds ``limit``.
        """
        body = self._encoder.encode(message)
        if len(body) > self.limit:
            raise FrameTooLarge(f"{type(message).__name__} needs {len(body)} bytes, the limit is {self.limit}")
        return _LENGTH.pack(len(body)) + body

    def decode(self, body: bytes | bytearray) -> T:
        """Return the message in ``body``.

        Raises:
            Garbled: the bytes are no message of this conversation.
        """
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Garbled(f"{len(body)} bytes are no message of this conversation: {error}") from error


class Challenge(msgspec.Struct, tag=True, frozen=True):
    """Sent by the listener: its version and nonce."""

    wire: int
    nonce: bytes


class Answer(msgspec.Struct, tag=True, frozen=True):
    """Sent by the dialler: its version, its nonce and its proof of the token."""

    wire: int
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """Sent by the listener: its own proof of the token."""

    proof: bytes


_handshake: Codec[Challenge | Answer | Welcome] = Codec(Challenge | Answer | Welcome, HANDSHAKE_LIMIT)


def _proof(token: bytes, role: bytes, listener: bytes, dialler: bytes) -> bytes:
    return hmac.digest(token, b"bireme/" + role + listener + dialler, "sha256")


def _check_version(wire: int) -> None:
    if wire != WIRE_VERSION:
        raise WrongVersion(f"the peer speaks wire version {wire}, this side speaks {WIRE_VERSION}")


def _answer(message: object, token: bytes, nonce: bytes) -> Answer:
    if not isinstance(message, Challenge) or len(message.nonce) != _NONCE_BYTES:
        raise Garbled("expected a Challenge")
    _check_version(message.wire)
    return Answer(WIRE_VERSION, nonce, _proof(token, b"dialler", message.nonce, nonce))


def _welcome(message: object, token: bytes, nonce: bytes) -> Welcome:
    if not isinstance(message, Answer) or len(message.nonce) != _NONCE_BYTES:
        raise Garbled("expected an Answer")
    _check_version(message.wire)
    if not hmac.compare_digest(message.proof, _proof(token, b"dialler", nonce, message.nonce)):
        raise WrongToken("the dialling peer does not hold this group's token")
    return Welcome(_proof(token, b"listener", nonce, message.nonce))


def _check_welcome(message: object, token: bytes, challenge: Challenge, nonce: bytes) -> None:
    if not isinstance(message, Welcome):
        raise Garbled("expected a Welcome")
    if not hmac.compare_digest(message.proof, _proof(token, b"listener", challenge.nonce, nonce)):
        raise WrongToken("the listening peer does not hold this group's token")


class Channel(Generic[T]):
    """One conversation over an asyncio stream; reads are for one task, writes are queued by the transport."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: Codec[T]) -> None:
        self._reader = reader
        self._writer = writer
        self._codec = codec

    async def receive(self) -> T:
        """Return the next message.

        Raises:
            ConnectionLost: the peer closed, also in the middle of a frame.
            FrameTooLarge, Garbled: the peer sent something else than this conversation.
        """
        return self._codec.decode(await self._read_body(self._codec.limit))

    def send(self, message: T) -> None:
        """Queue ``message``; a lost connection shows in ``receive``, never here."""
        self.send_frame(self._codec.frame(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue a frame of this conversation's codec: one that goes to many peers is encoded once."""
        if not self._writer.is_closing():
            self._writer.write(frame)

    @property
    def backlog(self) -> int:
        """Bytes that were sent and that the peer has not taken."""
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the peer has room.

        Raises:
            ConnectionLost: the peer is gone.
        """
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def close(self) -> None:
        """Close without waiting; what was queued is still sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close and drop what was queued."""
        self._writer.transport.abort()

    async def _read_body(self, limit: int) -> bytes:
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(4))
            if length > limit:
                raise FrameTooLarge(f"the peer announced {length} bytes, the limit is {limit}")
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            inside = f" inside a frame: {error}" if error.partial else ""
            raise ConnectionLost(f"the peer closed the connection{inside}") from error
        except OSError as error:
            raise ConnectionLost(f"the peer closed the connection: {error}") from error

    async def accept(self, token: bytes) -> None:
        """Prove the token to the dialling peer and make it prove its own (listener's side).

        Raises:
            WireError: the peer is none of ours; close the connection.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._writer.write(_handshake.frame(Challenge(WIRE_VERSION, nonce)))
        answer = _handshake.decode(await self._read_body(HANDSHAKE_LIMIT))
        self._writer.write(_handshake.frame(_welcome(answer, token, nonce)))

    async def dial(self, token: bytes) -> None:
        """Prove the token to the listening peer and check its proof (dialler's side).

        Raises:
            WireError: the peer is none of ours; close the connection.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        challenge = _handshake.decode(await self._read_body(HANDSHAKE_LIMIT))
        answer = _answer(challenge, token, nonce)
        self._writer.write(_handshake.frame(answer))
        assert isinstance(challenge, Challenge)
        _check_welcome(_handshake.decode(await self._read_body(HANDSHAKE_LIMIT)), token, challenge, nonce)


class SocketChannel(Generic[T]):
    """One conversation over a blocking socket, for rank processes; one thread reads, one thread writes."""

    def __init__(self, sock: socket.socket, codec: Codec[T]) -> None:
        self.sock = sock
        self._codec = codec

    def receive(self) -> T:
        """Return the next message; blocks.

        Raises:
            ConnectionLost, FrameTooLarge, Garbled: see ``Channel.receive``.
        """
        return self._codec.decode(self._read_body(self._codec.limit))

    def send(self, message: T) -> None:
        """Send ``message``; blocks while the peer has no room.

        Raises:
            ConnectionLost: the peer is gone.
        """
        self._write(self._codec.frame(message))

    def close(self) -> None:
        """Close; wakes a thread that is blocked in ``receive``."""
        with contextlib.suppress(OSError):  # the peer was faster
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _write(self, frame: bytes) -> None:
        try:
            self.sock.sendall(frame)
        except OSError as error:
            raise ConnectionLost(f"the peer is gone: {error}") from error

    def _read_exactly(self, count: int) -> bytearray:
        body = bytearray(count)
        view = memoryview(body)
        try:
            while view:
                got = self.sock.recv_into(view)
                if got == 0:
                    raise ConnectionLost("the peer closed the connection")
                view = view[got:]
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}") from error
        return body

    def _read_body(self, limit: int) -> bytearray:
        (length,) = _LENGTH.unpack(self._read_exactly(4))
        if length > limit:
            raise FrameTooLarge(f"the peer announced {length} bytes, the limit is {limit}")
        return self._read_exactly(length)

    def accept(self, token: bytes) -> None:
        """Listener's side of the challenge; see ``Channel.accept``."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._write(_handshake.frame(Challenge(WIRE_VERSION, nonce)))
        answer = _handshake.decode(self._read_body(HANDSHAKE_LIMIT))
        self._write(_handshake.frame(_welcome(answer, token, nonce)))

    def dial(self, token: bytes) -> None:
        """Dialler's side of the challenge; see ``Channel.dial``."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        challenge = _handshake.decode(self._read_body(HANDSHAKE_LIMIT))
        self._write(_handshake.frame(_answer(challenge, token, nonce)))
        assert isinstance(challenge, Challenge)
        _check_welcome(_handshake.decode(self._read_body(HANDSHAKE_LIMIT)), token, challenge, nonce)


async def open_channel(host: str, port: int, token: bytes, codec: Codec[T], limit_s: float) -> Channel[T]:
    """Dial ``host:port``, pass the challenge and return the conversation.

    Raises:
        ConnectionLost: nobody answered within ``limit_s`` seconds.
        WireError: the peer is none of ours.
    """
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(host, port)
            channel = Channel(reader, writer, codec)
            try:
                await channel.dial(token)
            except (WireError, asyncio.CancelledError):
                channel.abort()
                raise
            return channel
    except (OSError, TimeoutError) as error:
        raise ConnectionLost(f"{host}:{port} did not answer within {limit_s:g} s: {error}") from error
