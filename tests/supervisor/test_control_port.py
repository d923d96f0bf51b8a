"""Strangers at the control port: wrong token, garbage, silence, old incarnations. None of them disturbs the group."""

import asyncio
import struct

import pytest

from bireme.names import Port
from bireme.wire.control import Address, ControlMessage, Hello, Superseded, control_codec
from bireme.wire.errors import ConnectionLost, WireError
from bireme.wire.frames import open_channel
from tests.supervisor.pods import PATIENCE_S, TOKEN, Pod, Pods, children

Group = tuple[Pod, Pod]


async def _undisturbed(leader: Pod) -> None:
    document = await leader.until(lambda _: True)
    assert document.state == "Serving"


async def test_a_wrong_token_is_refused(lasting_group: Group) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    with pytest.raises(WireError):
        await open_channel(leader.address, Port.CONTROL, b"w" * 32, control_codec, PATIENCE_S)
    await _undisturbed(leader)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 64, struct.pack(">I", 2**31), b"\xff" * 5000, b""],
    ids=["http", "zeros", "huge", "ones", "nothing"],
)
async def test_garbage_at_the_control_port_is_closed(lasting_group: Group, garbage: bytes) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    reader, writer = await asyncio.open_connection(leader.address, Port.CONTROL)
    writer.write(garbage)
    writer.write_eof()
    await asyncio.wait_for(_to_the_end(reader), PATIENCE_S)
    writer.close()
    await _undisturbed(leader)


async def test_garbage_after_the_handshake_is_closed(lasting_group: Group) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    await _is_closed_after(leader, Superseded(3))
    await _undisturbed(leader)


@pytest.mark.parametrize(
    "hello",
    [
        Hello("other", 1, 1, "b", 0, (Address("127.0.0.1", 8010),) * 2),
        Hello("g", 9, 1, "b", 0, (Address("127.0.0.1", 8010),) * 2),
        Hello("g", 0, 1, "b", 0, (Address("127.0.0.1", 8010),) * 2),
        Hello("g", 1, 1, "b", 0, ()),
    ],
    ids=["group", "stage", "leader", "ranks"],
)
async def test_a_hello_that_can_not_be_is_turned_away(lasting_group: Group, hello: Hello) -> None:
    leader, _ = lasting_group
    await leader.until_serving()
    await _is_closed_after(leader, hello)
    await _undisturbed(leader)


async def test_an_older_incarnation_is_superseded_and_ends_its_ranks(pods: Pods) -> None:
    leader = pods.make(0).start()
    new = pods.make(1, incarnation=2).start()
    await leader.until_serving()
    old = pods.make(1, incarnation=1).start()
    document = await old.until(lambda document: document.reason == "Superseded")
    assert document.state == "Failed"
    await old.until(lambda document: all(not rank.pid for rank in document.stages[1].ranks))
    async with asyncio.timeout(PATIENCE_S):
        while children(old.pid):  # the state tells of ranks, and a spare ends beside them
            await asyncio.sleep(0.01)
    assert (await old.get("/livez"))[0] == 200
    assert (await old.get("/readyz"))[0] == 503
    await new.until_serving()


async def test_a_newer_incarnation_takes_over_from_a_living_older_one(pods: Pods) -> None:
    leader, old = pods.group()
    before = await leader.until_serving()
    new = pods.make(1, incarnation=2).start()
    await old.until(lambda document: document.reason == "Superseded")
    after = await leader.until_serving(above=before.epoch)
    assert after.stages[1].incarnation == 2
    await new.until_serving()


async def _is_closed_after(leader: Pod, message: ControlMessage) -> None:
    channel = await open_channel(leader.address, Port.CONTROL, TOKEN, control_codec, PATIENCE_S)
    channel.send(message)
    with pytest.raises(ConnectionLost):
        await channel.receive()
    channel.abort()


async def _to_the_end(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65536):
            pass
    except ConnectionResetError:
        return
