"""The HTTP process's end of the requests socket: one connection for all requests, dialled again whenever it is lost.

A ``Call`` is one HTTP request's share: the keys of its choices and a mailbox. The reader puts what a frame brings into
the mailboxes and wakes each at most once per frame; a handler takes everything that waits in one go, so a slow client
costs fewer, larger writes and nobody needs a task of his own. Leaving a call cancels what still runs.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bireme.wire.errors import ConnectionLost, Garbled, WireError
from bireme.wire.frames import Channel
from bireme.wire.plan import Sampling, pack_ids
from bireme.wire.requests import (
    Accepted,
    Allow,
    Cancel,
    Frame,
    Refused,
    RequestKinds,
    Serving,
    Submit,
    Tokens,
    request_codec,
)
from bireme_worker.http.errors import NotServing

REDIAL_S: Final = 0.1
"""Between two tries of a Unix socket: they cost next to nothing, and the group is not ready before one succeeds."""
DIAL_LIMIT_S: Final = 5.0
RETRY_AFTER_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lost:
    """The coordinator is gone, and with it all that it knew of the request."""

    reason: str


Event = Accepted | Refused | Tokens | Lost


class Call:
    """One HTTP request at the coordinator. ``revisions`` are those whose weights drew its tokens, in this order."""

    def __init__(self, link: "CoordinatorLink") -> None:
        self._link = link
        self._choices: dict[int, int] = {}
        self._waiting: list[tuple[int, Event]] = []
        self._wake = asyncio.Event()
        self.revisions: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for choice in list(self._choices.values()):
            self.cancel(choice)

    def submit(
        self,
        choice: int,
        *,
        request_id: str,
        prompt: Sequence[int],
        outputs: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        priority: int,
        journalled: bool,
        text: str = "",
        adapter: str = "",
        speculate: bool = True,
        encode: bool = False,
        mask: bytes = b"",
    ) -> None:
        """Ask the coordinator for one choice.

        Raises:
            NotServing: there is no coordinator at the moment.
        """
        key = self._link.register(self)
        self._choices[key] = choice
        self._link.send(
            Submit(
                key=key,
                request_id=request_id,
                prompt=pack_ids(list(prompt)),
                sampling=sampling,
                max_tokens=max_tokens,
                outputs=pack_ids(list(outputs)),
                priority=priority,
                journalled=journalled,
                text=text,
                adapter=adapter,
                speculate=speculate,
                encode=encode,
                mask=mask,
            )
        )

    def allow(self, choice: int, output: int, mask: bytes) -> None:
        """Tell which ids this choice may draw as its output number ``output``."""
        for key in [key for key, owner in self._choices.items() if owner == choice]:
            self._link.send(Allow(key, output, mask))

    def cancel(self, choice: int) -> None:
        """Free what the engine holds for this choice; does nothing when it has ended there."""
        for key in [key for key, owner in self._choices.items() if owner == choice]:
            del self._choices[key]
            self._link.forget(key)
            self._link.send(Cancel(key))

    def _note_revision(self, revision: str) -> None:
        if self.revisions[-1:] != [revision]:
            self.revisions.append(revision)

    async def events(self) -> list[tuple[int, Event]]:
        """Wait for news and return all there is: (choice, event) in the order of arrival."""
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        events, self._waiting = self._waiting, []
        return events

    def deliver(self, key: int, event: Event, model_revision: str) -> None:
        """Take a message of the coordinator (called by the link)."""
        choice = self._choices[key]
        if isinstance(event, Tokens):
            self._note_revision(model_revision)
        if isinstance(event, Refused | Lost) or (isinstance(event, Tokens) and event.finish):
            del self._choices[key]
            self._link.forget(key)
        self._waiting.append((choice, event))
        self._wake.set()


class CoordinatorLink:
    """The connection. ``serving`` is the coordinator's last word on whether it takes work, None while there is none."""

    def __init__(self, path: Path, token: bytes) -> None:
        self._path = path
        self._token = token
        self._channel: Channel[RequestKinds] | None = None
        self._calls: dict[int, Call] = {}
        self._keys = itertools.count(1)
        self.serving: Serving | None = None
        self._news = asyncio.Event()

    async def heard(self) -> Serving:
        """Wait for the coordinator's next word on serving and return the newest."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self.serving is not None:
                return self.serving

    async def run(self) -> None:
        """Keep the connection up until cancelled."""
        told = ""
        while True:
            try:
                channel = await self._dial()
            except WireError as error:
                if str(error) != told:
                    told = str(error)
                    log.info("no coordinator yet: %s", told)
                await asyncio.sleep(REDIAL_S)
                continue
            told = ""
            await self._serve(channel)

    def require_serving(self) -> Serving:
        """The coordinator's status.

        Raises:
            NotServing: it is away or takes no work; says why and when to come again.
        """
        serving = self.serving
        if serving is None:
            raise NotServing("this group is starting: its coordinator is not there yet", retry_after_s=RETRY_AFTER_S)
        if not serving.serving:
            message = f"this group takes no requests now ({serving.reason}): {serving.message}"
            raise NotServing(message, retry_after_s=serving.retry_after_s)
        return serving

    def register(self, call: Call) -> int:
        """A key of the connection for ``call``.

        Raises:
            NotServing: there is no connection.
        """
        if self._channel is None:
            raise NotServing("the coordinator is away: send again", retry_after_s=RETRY_AFTER_S)
        key = next(self._keys)
        self._calls[key] = call
        return key

    def forget(self, key: int) -> None:
        """Drop a key; later messages about it are ignored."""
        self._calls.pop(key, None)

    def send(self, message: Submit | Allow | Cancel) -> None:
        """Queue a message; without a connection it concerns nobody any more."""
        if self._channel is not None:
            self._channel.send(message)

    async def _dial(self) -> Channel[RequestKinds]:
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                reader, writer = await asyncio.open_unix_connection(self._path)
                channel = Channel(reader, writer, request_codec)
                try:
                    await channel.dial(self._token)
                except (WireError, asyncio.CancelledError):
                    channel.abort()
                    raise
                return channel
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{self._path}: {error}") from error

    async def _serve(self, channel: Channel[RequestKinds]) -> None:
        self._channel = channel
        reason = "this HTTP process stops"
        try:
            while True:
                self._dispatch(await channel.receive())
        except WireError as error:
            reason = f"coordinator lost: {error}"
            log.warning("%s", reason)
        finally:
            channel.abort()
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        revision = self.serving.model_revision if self.serving is not None else ""
        self._channel = None
        self.serving = None
        for key, call in list(self._calls.items()):
            call.deliver(key, Lost(reason), revision)

    def _dispatch(self, message: RequestKinds) -> None:
        match message:
            case Frame():
                for tokens in message.tokens:
                    self._deliver(tokens.key, tokens)
            case Accepted() | Refused():
                self._deliver(message.key, message)
            case Serving():
                self.serving = message
                self._news.set()
            case _:
                raise Garbled(f"the coordinator sent {type(message).__name__}, which only HTTP processes send")

    def _deliver(self, key: int, event: Event) -> None:
        call = self._calls.get(key)
        if call is not None:
            call.deliver(key, event, self.serving.model_revision if self.serving is not None else "")
