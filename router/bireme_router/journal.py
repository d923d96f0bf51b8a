"""Reads one attempt's event stream: commits journal entries, hands out whole events with their bytes untouched.

The rule of ``bireme.wire.journal``: an entry is committed when the next line of any kind arrives. Here that line is
usually the data line of the entry; it is handed out when its event is whole, or at the break (``rest``), so that what
is committed and what the client holds never differ. Journal lines themselves are dropped.
"""

import re
from typing import Final

import msgspec

from bireme.wire.errors import Garbled
from bireme.wire.journal import JOURNAL_PREFIX, Emitted, Handover, JournalEntry, Opened, read_journal
from bireme_router.sse import LineSplitter
from bireme_router.transcript import Transcript


class _Delta(msgspec.Struct):
    role: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_PAIR: Final = re.compile(rb': bireme \{"kind":"emitted","choice":(\d+),"token_ids":\[(\d+)\]\}\n(data:[^\n]*\n\n)')
"""What most of a stream consists of; whatever looks otherwise is read line by line."""

_chunk = msgspec.json.Decoder(_Chunk)


class OtherRevision(Garbled):
    """A resumed stream came from another checkpoint: none of it was delivered, another group may do."""


class JournalReader:
    """One per attempt. Once it ``ended``, ``done``, ``handover``, ``error`` (its payload) or ``garbled`` say how.

    It never raises: what came before the fault in the same read is delivered, as the transcript says.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.ended = False
        self.done = False
        self.handover: str | None = None
        self.error: bytes | None = None
        self.garbled: Garbled | None = None
        self.opened = False
        """Whether this attempt's journal has begun."""
        self.tokens = 0
        """Tokens committed by this attempt."""
        self._transcript = transcript
        self._splitter = LineSplitter()
        self._entry: JournalEntry | None = None
        self._block: list[bytes] = []
        self._look: bytes | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` makes whole, for the client as they are."""
        events: list[bytes] = []
        try:
            if not self._block and self._entry is None and self._splitter.is_empty:
                data = data[self._skim(data, events) :]
            if data:
                self._read(data, events)
        except Garbled as error:
            self._give_up(error)
        return events

    def rest(self) -> list[bytes]:
        """At a break: the event whose data line is complete but whose end did not arrive."""
        events: list[bytes] = []
        if not self.ended and any(line.startswith(b"data:") for line in self._block):
            try:
                self._end_event(b"\r" if self._block[-1].endswith(b"\r") else b"", events)
            except Garbled as error:
                self._give_up(error)
        return events

    def _skim(self, data: bytes, events: list[bytes]) -> int:
        """How many bytes are pairs of an id and its one-line event, as usual: taken without cutting lines."""
        at, transcript = 0, self._transcript
        while (pair := _PAIR.match(data, at)) is not None:
            choice, token, event = pair.groups()
            transcript.emitted_one(int(choice), int(token))
            self.tokens += 1
            events.append(event)
            at = pair.end()
        return at

    def _read(self, data: bytes, events: list[bytes]) -> None:
        block = self._block
        for line in self._splitter.feed(data):  # runs for every token: one loop, no call per line
            told = False
            if self._entry is not None:
                told = self._commit(self._entry)
                self._entry = None
            if line.startswith(JOURNAL_PREFIX):
                self._take(read_journal(line))
            elif line and line != b"\r":
                block.append(line)
                if not told and line.startswith(b"data:"):
                    self._look = line
            elif block:
                self._end_event(line, events)
            if self.ended:
                break

    def _give_up(self, error: Garbled) -> None:
        self.garbled = error
        self.ended = True

    def _take(self, entry: JournalEntry) -> None:
        if isinstance(entry, Handover):
            self.handover = entry.reason
            self.ended = True
        else:
            self._entry = entry

    def _commit(self, entry: JournalEntry) -> bool:
        """Whether the data event that follows holds nothing but tokens, so that nobody needs to look into it."""
        if isinstance(entry, Emitted):
            ids = entry.token_ids
            self._transcript.emitted(entry.choice, ids, entry.finish_reason)
            self.tokens += len(ids)
            return bool(ids) and entry.finish_reason is None
        if isinstance(entry, Opened):
            self._open(entry)
        return False

    def _open(self, entry: Opened) -> None:
        again, self.opened = self.opened, True
        begun_under = self._transcript.model_revision
        if again:  # a reload in mode `restart` carried the stream over: from here on only these weights may go on
            self._transcript.move_to(entry.model_revision)
        elif not self._transcript.begun:
            self._transcript.opened(entry)
        elif entry.model_revision != begun_under:
            raise OtherRevision(
                f"resumed under model revision {entry.model_revision!r}, the stream began under {begun_under!r}"
            )

    def _end_event(self, blank: bytes, events: list[bytes]) -> None:
        self._block.append(blank)
        event = b"\n".join(self._block) + b"\n"
        self._block.clear()
        if self._look is None:
            events.append(event)
            return
        look, self._look = self._look, None
        if self._is_wanted(look[5:].strip()):
            events.append(event)

    def _is_wanted(self, payload: bytes) -> bool:
        if payload == b"[DONE]":
            self.done = self.ended = True
            return True
        try:
            chunk = _chunk.decode(payload)
        except msgspec.MsgspecError as error:
            raise Garbled(f"an event of the stream is no JSON chunk: {error}") from error
        if chunk.error is not None:
            self.error = payload
            self.ended = True
            return False
        if not chunk.choices:
            return self._is_first_usage(chunk)
        return self._is_first_greeting(chunk)

    def _is_first_usage(self, chunk: _Chunk) -> bool:
        if chunk.usage is None:
            return True
        first = not self._transcript.usage_delivered
        self._transcript.usage_delivered = True
        details = chunk.usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            self._transcript.cached_tokens = details.cached_tokens
        return first

    def _is_first_greeting(self, chunk: _Chunk) -> bool:
        transcript = self._transcript
        if transcript.model_revision is None:
            transcript.untold_text = True
        greeting = {choice.index for choice in chunk.choices if choice.delta is not None and choice.delta.role}
        if greeting and greeting <= transcript.greeted:
            return False
        transcript.greeted |= greeting
        return True
