"""One question through the endpoint, the answer printed as it comes. What any OpenAI client does, in thirty lines."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from bireme.cli.errors import Refused
from bireme.names import Exit

_DATA = b"data: "
_DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: dict[str, object] | None = None


async def accepting(host: str, port: int) -> None:
    """Return as soon as something accepts connections there."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def answer(endpoint: str, model: str, question: str) -> AsyncIterator[str]:
    """Yield the pieces of the answer (chat, temperature 0).

    Raises:
        Refused: the endpoint refused, or the answer broke off.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
    }
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{endpoint}/chat/completions", json=body) as response,
        ):
            if response.status != 200:
                raise Refused(f"{endpoint} answered {response.status}: {await response.text()}", Exit.INTERNAL)
            async for line in response.content:
                if line.startswith(_DATA + _DONE):
                    return
                if line.startswith(_DATA):
                    yield _text(line.removeprefix(_DATA))
    except aiohttp.ClientError as error:
        raise Refused(f"{endpoint}: {error}", Exit.INTERNAL) from error
    raise Refused(f"{endpoint}: the answer broke off", Exit.INTERNAL)


def _text(data: bytes) -> str:
    chunk = msgspec.json.decode(data, type=_Chunk)
    if chunk.error is not None:
        raise Refused(f"the answer broke off: {chunk.error.get('message', chunk.error)}", Exit.INTERNAL)
    return "".join(choice.delta.content or "" for choice in chunk.choices)
