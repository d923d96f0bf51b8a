"""A client that leaves frees the engine at once, wherever its request is."""

import asyncio

import aiohttp
import pytest

from bireme_worker.text.tokenizer import TextModel
from tests.http.scripted_coordinator import Script, ScriptedCoordinator, continuing
from tests.http.support import CHAT, Stand, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
async def test_a_client_that_leaves_cancels_its_choices(
    stand: Stand, coordinator: ScriptedCoordinator, text: TextModel, where: str, stream: bool
) -> None:
    ids = [text.encode("one two", add_special_tokens=False)] if where == "decode" else []
    coordinator.script = lambda _: Script(ids, accepted=where != "queue")
    async with aiohttp.ClientSession(stand.process.base) as session:
        asking = asyncio.ensure_future(session.post(CHAT, json=chat_body(n=2, stream=stream)))
        await coordinator.until(lambda: len(coordinator.submits) == 2)
        if where == "decode" and stream:
            response = await asking
            await response.content.readline()
            response.close()
        else:
            asking.cancel()
            await asyncio.wait([asking])
    keys = {submit.key for submit in coordinator.submits}
    await coordinator.until(lambda: coordinator.cancelled >= keys)


async def test_other_streams_go_on_when_one_client_leaves(
    stand: Stand, coordinator: ScriptedCoordinator, text: TextModel
) -> None:
    ids = [*text.encode("unharmed", add_special_tokens=False), 2]
    leaving = "leaving"
    coordinator.script = lambda submit: Script() if submit.request_id == leaving else continuing(ids)(submit)
    async with aiohttp.ClientSession(stand.process.base) as session:
        asking = asyncio.ensure_future(session.post(CHAT, json=chat_body(), headers={"x-request-id": leaving}))
        await coordinator.until(lambda: bool(coordinator.submits))
        asking.cancel()
        await asyncio.wait([asking])

        async def ask() -> str:
            async with session.post(CHAT, json=chat_body()) as response:
                return str((await response.json())["choices"][0]["message"]["content"])

        assert await asyncio.gather(*(ask() for _ in range(32))) == ["unharmed"] * 32
    own = {submit.key for submit in coordinator.submits}
    await coordinator.until(lambda: coordinator.cancelled & own == {coordinator.submits[0].key})
