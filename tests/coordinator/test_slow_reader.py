"""An HTTP process that does not read must not take the coordinator's memory."""

import asyncio
import socket

from bireme.wire.frames import Channel
from bireme.wire.requests import Frame, RequestKinds, Tokens, request_codec
from bireme_worker.coordinator.request_port import BACKLOG_LIMIT, Client


async def test_a_process_that_lets_its_frames_pile_up_is_cut_off() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    channel: Channel[RequestKinds] = Channel(reader, writer, request_codec)
    client = Client(channel)
    frame = Frame(1, (Tokens(1, bytes(4 * 1024 * 1024)),))
    sent = 0
    with theirs:
        while not writer.is_closing():
            client.send(frame)
            sent += 1
            await asyncio.sleep(0)
        assert BACKLOG_LIMIT < sent * 4 * 1024 * 1024 < 2 * BACKLOG_LIMIT
    await asyncio.sleep(0)
    assert channel.backlog == 0
