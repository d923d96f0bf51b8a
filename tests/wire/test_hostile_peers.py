"""Garbage, truncation, wrong token, wrong version, oversize: a clear error each time, never a crash, never a hang."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.wire import WIRE_VERSION, journal, routes, state
from bireme.wire.control import Formed, Stop, control_codec
from bireme.wire.errors import ConnectionLost, FrameTooLarge, Garbled, WireError, WrongToken, WrongVersion
from bireme.wire.frames import HANDSHAKE_LIMIT, Channel, SocketChannel, open_channel
from tests.wire import samples

TOKEN = b"t" * 32


@pytest.mark.parametrize("name", samples.CONVERSATIONS)
@settings(max_examples=300)
@given(data=st.data())
def test_mutated_frames_decode_or_are_called_garbled(name: str, data: st.DataObject) -> None:
    codec, messages = samples.CONVERSATIONS[name]
    body = bytearray(codec.frame(data.draw(st.sampled_from(messages)))[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Garbled):
        codec.decode(bytes(body[: data.draw(st.integers(0, len(body)))]))


@given(body=st.binary(max_size=200))
def test_random_bytes_are_called_garbled_or_decode(body: bytes) -> None:
    for codec, _ in samples.CONVERSATIONS.values():
        with contextlib.suppress(Garbled):
            codec.decode(body)
    for read in (state.read_state, routes.read_routes, journal.read_journal):
        with pytest.raises(Garbled):
            read(body)


def test_deep_nesting_is_garbled_not_a_crash() -> None:
    with pytest.raises(Garbled):
        control_codec.decode(b"\x91" * 100_000)
    with pytest.raises(Garbled):
        state.read_state(b"[" * 100_000)


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(FrameTooLarge, match="limit"):
        control_codec.frame(Stop("x" * (control_codec.limit + 1)))


@contextlib.asynccontextmanager
async def _listener(serve: Callable[[Channel[Any]], Any]) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel: Channel[Any] = Channel(reader, writer, control_codec)
        try:
            await serve(channel)
        finally:
            channel.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_two_holders_of_the_token_talk() -> None:
    async def serve(channel: Channel[Any]) -> None:
        await channel.accept(TOKEN)
        channel.send(await channel.receive())

    async with _listener(serve) as port:
        channel = await open_channel("127.0.0.1", port, TOKEN, control_codec, 5)
        channel.send(Formed(3))
        assert await channel.receive() == Formed(3)
        channel.close()


async def test_a_dialler_with_another_token_is_refused_and_told_nothing() -> None:
    caught: list[WireError] = []

    async def serve(channel: Channel[Any]) -> None:
        try:
            await channel.accept(TOKEN)
        except WireError as error:
            caught.append(error)

    async with _listener(serve) as port:
        with pytest.raises(ConnectionLost):
            await open_channel("127.0.0.1", port, b"u" * 32, control_codec, 5)
    assert isinstance(caught[0], WrongToken)


async def test_a_listener_with_another_token_is_not_believed() -> None:
    async def serve(channel: Channel[Any]) -> None:
        writer = channel._writer
        writer.write(_framed({"type": "Challenge", "wire": WIRE_VERSION, "nonce": b"n" * 32}))
        await channel._read_body(HANDSHAKE_LIMIT)
        writer.write(_framed({"type": "Welcome", "proof": b"p" * 32}))
        await writer.drain()

    async with _listener(serve) as port:
        with pytest.raises(WrongToken, match="listening"):
            await open_channel("127.0.0.1", port, TOKEN, control_codec, 5)


async def test_another_version_is_refused_with_both_numbers() -> None:
    async def serve(channel: Channel[Any]) -> None:
        channel._writer.write(_framed({"type": "Challenge", "wire": 99, "nonce": b"n" * 32}))
        await channel._writer.drain()

    async with _listener(serve) as port:
        with pytest.raises(WrongVersion, match=f"99.*{WIRE_VERSION}"):
            await open_channel("127.0.0.1", port, TOKEN, control_codec, 5)


async def test_a_replayed_answer_fails_on_the_next_nonce() -> None:
    outcome: list[WireError | None] = []

    async def serve(channel: Channel[Any]) -> None:
        try:
            await channel.accept(TOKEN)
            outcome.append(None)
        except WireError as error:
            outcome.append(error)

    async with _listener(serve) as port:
        recorded = await _record_answer(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(recorded)
        assert await asyncio.wait_for(_read_all(reader), 5)
        writer.close()
    assert outcome[0] is None
    assert isinstance(outcome[1], WrongToken)


async def test_a_stranger_cannot_make_us_allocate_before_the_proof() -> None:
    caught: list[WireError] = []

    async def serve(channel: Channel[Any]) -> None:
        try:
            await channel.accept(TOKEN)
        except WireError as error:
            caught.append(error)

    async with _listener(serve) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">I", 2**31))
        await asyncio.wait_for(_read_all(reader), 5)
        writer.close()
    assert isinstance(caught[0], FrameTooLarge)


async def test_a_peer_that_closes_inside_a_frame_is_a_lost_connection() -> None:
    async def serve(channel: Channel[Any]) -> None:
        await channel.accept(TOKEN)
        channel._writer.write(control_codec.frame(Formed(3))[:-1])

    async with _listener(serve) as port:
        channel = await open_channel("127.0.0.1", port, TOKEN, control_codec, 5)
        with pytest.raises(ConnectionLost):
            await channel.receive()
        channel.close()


async def test_nobody_there_is_a_lost_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost, match="did not answer"):
            await open_channel("127.0.0.1", free.getsockname()[1], TOKEN, control_codec, 1)


async def test_a_silent_listener_is_given_up_after_the_limit() -> None:
    async def serve(channel: Channel[Any]) -> None:
        await channel._reader.read()

    async with _listener(serve) as port:
        with pytest.raises(ConnectionLost, match=r"0\.05 s"):
            await open_channel("127.0.0.1", port, TOKEN, control_codec, 0.05)


def test_blocking_sockets_speak_the_same_handshake_and_frames() -> None:
    left, right = socket.socketpair()
    listener: SocketChannel[Any] = SocketChannel(left, control_codec)
    dialler: SocketChannel[Any] = SocketChannel(right, control_codec)
    accepting = threading.Thread(target=listener.accept, args=(TOKEN,))
    accepting.start()
    dialler.dial(TOKEN)
    accepting.join()
    dialler.send(Formed(5))
    assert listener.receive() == Formed(5)
    dialler.close()
    with pytest.raises(ConnectionLost):
        listener.receive()
    listener.close()


def test_closing_a_blocking_channel_wakes_its_reader() -> None:
    left, right = socket.socketpair()
    channel: SocketChannel[Any] = SocketChannel(left, control_codec)
    errors: list[WireError] = []

    def read() -> None:
        try:
            channel.receive()
        except WireError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    channel.close()
    reader.join(5)
    right.close()
    assert isinstance(errors[0], ConnectionLost)


def _framed(message: dict[str, Any]) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read(-1)
    return b"reset"


async def _record_answer(port: int) -> bytes:
    """Pass the challenge honestly and return the raw bytes of our Answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent: list[bytes] = []
    original = writer.write

    def write(data: Any) -> None:
        sent.append(bytes(data))
        original(data)

    writer.write = write  # type: ignore[method-assign]
    await Channel(reader, writer, control_codec).dial(TOKEN)
    writer.close()
    return sent[0]
