"""Journal, resume and hand-over between a worker's OpenAI port and the router.

The journal is an SSE comment line ``: bireme {json}`` before the data event whose ids it tells, sent also when the text
is held back; without the token a stream is byte-for-byte OpenAI's. A reader commits an entry when the next line of any
kind arrives: until then the data event that belongs to it may be missing. An entry that was not committed is dropped;
its ids were not delivered and are drawn again, alike.
"""

from typing import Final

import msgspec

from bireme.wire.errors import Garbled

JOURNAL_PREFIX: Final = b": bireme "


class Opened(msgspec.Struct, frozen=True, tag_field="kind", tag="opened", omit_defaults=True):
    """First entry of a stream: the prompt as the engine sees it, and whose weights answer.

    It comes again where a reload in mode `restart` goes on with other weights: only they may resume it from there.
    ``cached_tokens``: how much of the prompt was in the prefix cache, as far as it is known by then.
    """

    v: int
    prompt_token_ids: list[int]
    model_revision: str
    cached_tokens: int | None = None


class Emitted(msgspec.Struct, frozen=True, tag_field="kind", tag="emitted", omit_defaults=True):
    """Ids of one choice; ``finish_reason`` when they are the last."""

    choice: int
    token_ids: list[int]
    finish_reason: str | None = None


class Handover(msgspec.Struct, frozen=True, tag_field="kind", tag="handover"):
    """The stream ends here without [DONE]: resume it, on this group or another."""

    reason: str


JournalEntry = Opened | Emitted | Handover


class ResumedChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was delivered of one choice."""

    index: int
    output_token_ids: list[int]
    finish_reason: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """Continue a stream: these ids count as output already generated. Only on the same ``model_revision``."""

    prompt_token_ids: list[int]
    model_revision: str
    choices: list[ResumedChoice]


class Extension(msgspec.Struct, frozen=True, omit_defaults=True):
    """The router's part of a request body, under the key ``bireme``; needs the group token.

    ``request_id`` and ``created`` (Unix seconds) make every attempt's response alike; ``seed`` (64 bits) is used where
    the client gave none. ``resume`` continues a stream.
    """

    request_id: str
    created: int
    seed: int
    resume: Resume | None = None


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(JournalEntry)


def journal_line(entry: JournalEntry) -> bytes:
    """One SSE comment line with its newline."""
    return JOURNAL_PREFIX + _encoder.encode(entry) + b"\n"


def read_journal(line: bytes) -> JournalEntry:
    """The entry in a line that starts with ``JOURNAL_PREFIX``, newline or not.

    Raises:
        Garbled: the line is no journal entry.
    """
    try:
        return _decoder.decode(line[len(JOURNAL_PREFIX) :])
    except msgspec.MsgspecError as error:
        raise Garbled(f"no journal entry: {error}") from error
