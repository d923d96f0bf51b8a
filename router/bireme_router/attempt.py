"""One attempt: send the request to one leader, relay what comes, and say how it ended.

Whatever ends it, the connection is closed at once unless the answer was read to its end: that is how a worker learns
that a client has left. Every limit fires on its own: connect, first token, idle; the total is the caller's.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp

from bireme.names import Header
from bireme.wire.errors import Garbled
from bireme_router.accounts import Lease
from bireme_router.body import BodyPayload, Pieces
from bireme_router.direct import Flow, possible
from bireme_router.errors import ClientLeft, GroupsLost, RouterError
from bireme_router.job import Job
from bireme_router.journal import JournalReader, OtherRevision
from bireme_router.outcome import Failed, Finished, Lost, Outcome, Refused
from bireme_router.policies.avoidance import Setback
from bireme_router.revisions import Revision
from bireme_router.settings import Settings
from bireme_router.sink import Sink
from bireme_router.transcript import Transcript

_MAX_REFUSAL: Final = 1024 * 1024
_LEFTOVER_S: Final = 0.25
"""How long the end of a finished answer may lag behind its end marker before the connection is thrown away."""
_SLACK: Final = 64
"""The idle timer is set anew once per 1/64 of its time, not with every token."""


class Attempt:
    """Sends one job to the place that ``lease`` holds."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: Settings,
        *,
        job: Job,
        transcript: Transcript,
        sink: Sink,
        lease: Lease,
        revision: Revision,
        claim: Callable[[], bool],
    ) -> None:
        """``claim`` is asked when the group has answered: whether this attempt may go on, or another was faster."""
        self._claim = claim
        self._session = session
        self._settings = settings
        self._job = job
        self._transcript = transcript
        self._sink = sink
        self._lease = lease
        self._revision = revision
        self._sent_at = 0.0
        self._flowing = False
        self._clock = asyncio.get_running_loop().time
        self._reader = JournalReader(transcript)
        self._limit = asyncio.timeout(settings.first_token_timeout_s)
        self._silence = f"no token for {settings.first_token_timeout_s:g} s"
        self._set_at = 0.0
        self._opened = False
        self._response: aiohttp.ClientResponse | None = None
        """The answer that is being relayed."""
        self._fault: RouterError | ClientLeft | None = None
        """What ended the stream inside the parser."""

    async def run(self, body: Pieces, number: int, traced: Mapping[str, str]) -> Outcome:
        """Send ``body`` as attempt ``number`` (from 1) and relay the answer; ``traced``: headers of the trace."""
        self._sent_at = self._lease.touched = self._clock()
        try:
            async with self._limit:
                self._lease.abandon = self._abandon
                return await self._send(body, {**self._headers(number), **traced})
        except TimeoutError:
            if self._response is not None:
                return await self._broken(self._response, self._silence, Setback.SILENT)
            return Lost(Setback.SILENT, self._silence)
        finally:
            self._lease.abandon = _too_late

    async def _send(self, body: Pieces, headers: Mapping[str, str]) -> Outcome:
        url = self._lease.where.http + self._job.path
        try:
            response = await self._session.post(url, data=BodyPayload(body), headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Lost(Setback.UNREACHED, f"can't be reached: {error}")
        except (aiohttp.ClientError, OSError) as error:
            return Lost(Setback.RESET, f"no answer: {str(error) or type(error).__name__}")
        try:
            if response.status != 200:
                return await _refusal(response)
            if self._job.whole:
                return await self._take_whole(response)
            if response.content_type != "text/event-stream":
                return Lost(Setback.BROKEN, f"answered with {response.content_type}, not with an event stream")
            if not self._claim():
                return Lost(Setback.OUTRUN, "another group was faster")
            return await self._relay(response)
        except (aiohttp.ClientError, OSError) as error:
            return await self._broken(response, f"the connection broke: {str(error) or type(error).__name__}")
        finally:
            response.close()

    async def _take_whole(self, response: aiohttp.ClientResponse) -> Outcome:
        body = await response.read()
        if not self._claim():
            return Lost(Setback.OUTRUN, "another group was faster")
        await self._sink.finish_with(body, response.headers)
        self._lease.release()
        return Finished()

    def _headers(self, number: int) -> dict[str, str]:
        return {
            **self._job.headers,
            "content-type": "application/json",
            Header.TOKEN: f"Bearer {self._lease.where.token}",
            Header.JOURNAL: "1",
            Header.REQUEST_ID: self._job.request_id,
            Header.ATTEMPT: str(number),
        }

    async def _relay(self, response: aiohttp.ClientResponse) -> Outcome:
        """Until the sink is open by awaiting every piece, then directly."""
        reader, sink, content = self._reader, self._sink, response.content
        self._response = response
        while not (sink.open and possible(content)):
            if not (data := await content.readany()):
                return await self._broken(response, "the connection was closed before the end marker")
            if events := self._read(data):
                await sink.write(events, response.headers)
            if sink.congested:
                await self._drain()
            if reader.ended:
                return await self._ended(response)
        return await self._flow(response)

    async def _flow(self, response: aiohttp.ClientResponse) -> Outcome:
        content = response.content
        flow = Flow(content, self._on_data)
        while not content.at_eof():
            await flow.until_stopped()
            if self._fault is not None:
                raise self._fault
            if self._reader.ended:
                return await self._ended(response)
            if self._sink.congested:
                await self._drain()
        return await self._broken(response, "the connection was closed before the end marker")

    def _on_data(self, data: bytes) -> bool:
        """A piece of the stream; whether more may come at once. Runs inside aiohttp's parser: it must not raise."""
        if self._reader_ended() or self._fault is not None:
            return False
        try:
            if events := self._read(data):
                self._sink.put(events)
        except (RouterError, ClientLeft) as error:
            self._fault = error
            return False
        return not self._sink.congested and not self._reader_ended()

    def _reader_ended(self) -> bool:
        return self._reader.ended

    def _read(self, data: bytes) -> list[bytes]:
        """The events that a piece makes whole."""
        reader = self._reader
        before = reader.tokens
        events = reader.feed(data)
        if reader.tokens != before:
            self._progress(reader.tokens - before)
        elif not self._opened and reader.opened:
            self._opened = True
            self._lease.opened(len(self._transcript.prompt) + self._transcript.tokens)
        elif events and not reader.opened:
            self._progress(len(events))  # no journal: every event counts as a token
        return events

    def _progress(self, tokens: int) -> None:
        now = self._clock()
        lease = self._lease
        if self._flowing:
            self._revision.gap.observe((now - lease.touched) / tokens, tokens)
        else:
            self._flowing = True
            self._revision.first_token.observe(now - self._sent_at)
        lease.emitted(tokens, now)
        if now - self._set_at > self._settings.idle_timeout_s / _SLACK:
            self._wait_for_next(now)

    def _wait_for_next(self, now: float) -> None:
        idle = self._settings.idle_timeout_s
        self._wait_until(now + idle)
        self._silence = f"no further token for {idle:g} s"
        self._set_at = now

    def _wait_until(self, when: float | None) -> None:
        if not self._limit.expired():
            self._limit.reschedule(when)

    async def _drain(self) -> None:
        self._wait_until(None)  # a slow client is no silent worker
        await self._sink.drain()
        self._wait_for_next(self._clock())

    async def _broken(
        self, response: aiohttp.ClientResponse, reason: str, setback: Setback = Setback.BROKEN
    ) -> Outcome:
        """What came whole but for its last line end is delivered: its ids count as that."""
        if events := self._reader.rest():
            await self._sink.write(events, response.headers)
        if self._reader.ended:
            return await self._ended(response)
        return Lost(setback, reason)

    async def _ended(self, response: aiohttp.ClientResponse) -> Outcome:
        reader = self._reader
        if reader.error is not None:
            return Failed(reader.error)
        if reader.garbled is not None:
            return _not_understood(reader.garbled)
        if reader.handover is not None:
            return Lost(Setback.HANDED_OVER, f"handed over: {reader.handover}")
        self._wait_until(None)
        await self._sink.finish()
        self._lease.release()
        await _read_leftover(response)
        return Finished()

    def _abandon(self, reason: str) -> None:
        self._silence = reason
        self._wait_until(self._clock())


def _not_understood(error: Garbled) -> Lost:
    """Only a stream of another checkpoint may go on elsewhere: after anything else the client may miss an event."""
    if isinstance(error, OtherRevision):
        return Lost(Setback.REFUSED, f"{error}")
    raise GroupsLost(f"the group's stream can't be understood: {error}") from error


async def _refusal(response: aiohttp.ClientResponse) -> Refused:
    body = bytearray()
    while len(body) < _MAX_REFUSAL and (data := await response.content.readany()):
        body += data
    return Refused(
        status=response.status,
        headers=response.headers,
        body=bytes(body),
        unprocessed=response.headers.get(Header.UNPROCESSED) == "1",
        retry_after_s=_seconds(response.headers.get("retry-after", "")),
    )


async def _read_leftover(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_LEFTOVER_S):
            while await response.content.readany():
                pass


def _seconds(text: str) -> float:
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0


def _too_late(reason: str) -> None:
    """The attempt has ended already."""
