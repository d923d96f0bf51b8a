"""A coordinator that speaks the real requests socket and answers with ids that a test wrote.

It runs in the test's own event loop. Every ``Submit`` is answered by ``script(submit)``; frames go out one by one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bireme.wire.errors import WireError
from bireme.wire.frames import Channel
from bireme.wire.plan import Logprobs, pack_ids, unpack_ids
from bireme.wire.requests import (
    Accepted,
    Allow,
    Cancel,
    Frame,
    Limits,
    Refused,
    RequestKinds,
    Serving,
    Submit,
    Tokens,
    request_codec,
)

LIMIT_S: Final = 60.0
"""For anything to come to pass: an HTTP process that starts imports for seconds where others do so, too."""


@dataclass(frozen=True)
class Script:
    """What happens to one request: frames of ids, then how it ends; "" leaves it open, as if it were still running.

    ``accepted`` false leaves it without any word, as in a coordinator that has not read it yet.
    """

    frames: Sequence[Sequence[int]] = ()
    finish: str = ""
    message: str = ""
    cached: int = 0
    refused: Refused | None = None
    accepted: bool = True


def by_ones(ids: Sequence[int]) -> list[list[int]]:
    """One id per frame."""
    return [[token] for token in ids]


def continuing(ids: Sequence[int], finish: str = "stop", group: int = 1) -> Callable[[Submit], Script]:
    """A model that always says ``ids``, and goes on behind what a request has already."""

    def script(submit: Submit) -> Script:
        left = list(ids)[len(unpack_ids(submit.outputs)) : submit.max_tokens]
        frames = [left[start : start + group] for start in range(0, len(left), group)]
        return Script(frames, finish if len(ids) <= submit.max_tokens else "length")

    return script


def logprobs_of(token: int, top: int) -> Logprobs:
    """Log probabilities that depend on the token alone."""
    return Logprobs(-0.5 - token / 1e6, tuple((token + place, -1.0 - place) for place in range(top)))


@dataclass
class ScriptedCoordinator:
    """Listens at ``path``. ``submits``, ``cancelled`` and ``asked_by`` record what the HTTP processes asked for."""

    path: Path
    token: bytes
    revision: str = "rev-1"
    context: int = 512
    wanted: int = 0
    source: str = ""
    text: str = ""
    script: Callable[[Submit], Script] = lambda _: Script()
    logprobs: Callable[[int, int], Logprobs] = logprobs_of
    submits: list[Submit] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    asked_by: set[int] = field(default_factory=set)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _channels: list[Channel[RequestKinds]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _step: int = 0

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        """Close the socket and every connection, as a coordinator that died."""
        assert self._server is not None
        self._server.close()
        self.lose_everyone()
        self.path.unlink(missing_ok=True)

    def lose_everyone(self) -> None:
        for channel in self._channels:
            channel.abort()
        self._channels.clear()

    def reset(self) -> None:
        """Forget what was recorded and answer nothing."""
        self.submits.clear()
        self.cancelled.clear()
        self.asked_by.clear()
        self.script = lambda _: Script()
        self.logprobs = logprobs_of

    @property
    def connections(self) -> int:
        """How many HTTP processes are connected."""
        return len(self._channels)

    def announce(
        self, *, serving: bool = True, reason: str = "None", message: str = "", retry_after_s: float = 0.0
    ) -> None:
        """Tell every HTTP process whether work is taken."""
        for channel in self._channels:
            channel.send(self._serving(serving, reason, message, retry_after_s))

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something that was recorded makes ``reached`` true."""
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(reached)

    def _serving(self, serving: bool, reason: str, message: str, retry_after_s: float) -> Serving:
        limits = Limits(self.context, running=64, queue=36, wanted=self.wanted)
        return Serving(serving, reason, message, retry_after_s, 1, self.revision, 0, limits, self.source, self.text)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, request_codec)
        with contextlib.suppress(WireError):
            await channel.accept(self.token)
            self._channels.append(channel)
            channel.send(self._serving(True, "None", "", 0.0))
            await self._tell()
            while True:
                await self._take(channel, await channel.receive())
        channel.abort()

    async def _take(self, channel: Channel[RequestKinds], message: RequestKinds) -> None:
        match message:
            case Submit():
                self.submits.append(message)
                self.asked_by.add(id(channel))
                self._answer(channel, message, self.script(message))
            case Allow():
                pass  # its scripts draw what they please
            case Cancel():
                self.cancelled.add(message.key)
            case _:
                raise AssertionError(f"an HTTP process sent {message}")
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _answer(self, channel: Channel[RequestKinds], submit: Submit, script: Script) -> None:
        if script.refused is not None:
            channel.send(script.refused)
            return
        if script.accepted:
            channel.send(Accepted(submit.key))
        for place, ids in enumerate(script.frames or [[]] * bool(script.finish)):
            finish = script.finish if place >= len(script.frames) - 1 else ""
            scored = tuple(self.logprobs(token, submit.sampling.logprobs) for token in ids)
            wanted = scored if submit.sampling.logprobs >= 0 else ()
            self._step += 1
            tokens = Tokens(submit.key, pack_ids(list(ids)), finish, script.cached, wanted, script.message)
            channel.send(Frame(self._step, (tokens,)))
