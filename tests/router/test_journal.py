"""T2, split at every byte: lines, events and journal are the same wherever the network cut, and however it breaks."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.wire.journal import Emitted, Extension, Opened, journal_line
from bireme_router.journal import JournalReader, OtherRevision
from bireme_router.policies.continuation import GoOn, how_to_go_on
from bireme_router.sse import LONGEST_LINE, LineSplitter, payload_of
from bireme_router.transcript import Transcript
from tests.support.router_process import CHAT, COMPLETIONS
from tests.support.stub_answers import REVISION, Answer

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, {"n": 2, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"max_tokens": 12}),
    (COMPLETIONS, {"n": 3, "max_tokens": 4, "logprobs": 1, "stream_options": {"include_usage": True}}),
]


def body_of(extra: dict[str, Any], transcript: Transcript | None = None) -> dict[str, Any]:
    resume = transcript.resume() if transcript else None
    return {"model": "m", "seed": 3, **extra, "bireme": Extension("r", 1, 5, resume)}


def answer_of(path: str, extra: dict[str, Any], transcript: Transcript | None = None) -> Answer:
    return Answer(path, msgspec.json.decode(msgspec.json.encode(body_of(extra, transcript))))


def transcript_of(extra: dict[str, Any]) -> Transcript:
    wants_usage = "stream_options" in extra
    n = extra.get("n", 1)
    assert isinstance(n, int)
    return Transcript(n, wants_usage=wants_usage)


@pytest.mark.parametrize(("path", "extra"), REQUESTS)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_t2_every_cut_in_two_gives_the_same_events_and_the_same_journal(
    path: str, extra: dict[str, Any], ending: bytes
) -> None:
    stream = b"".join(answer_of(path, extra).lines()).replace(b"\n", ending)
    whole = answer_of(path, extra).plain().replace(b"\n", ending)
    for cut in range(len(stream) + 1):
        transcript = transcript_of(extra)
        reader = JournalReader(transcript)
        events = reader.feed(stream[:cut]) + reader.feed(stream[cut:])
        assert b"".join(events) == whole, cut
        assert reader.done
        resume = transcript.resume()
        assert resume is not None
        assert [choice.output_token_ids for choice in resume.choices] == [
            answer_of(path, extra).ids(choice.index)[: len(choice.output_token_ids)] for choice in resume.choices
        ]
        assert all(choice.finish_reason for choice in resume.choices)


@pytest.mark.parametrize("step", [1, 2, 7])
def test_t2_a_trickle_of_bytes_gives_the_same_events(step: int) -> None:
    path, extra = REQUESTS[1]
    stream = b"".join(answer_of(path, extra).lines())
    reader = JournalReader(transcript_of(extra))
    events = [event for at in range(0, len(stream), step) for event in reader.feed(stream[at : at + step])]
    assert b"".join(events) == answer_of(path, extra).plain()


@pytest.mark.parametrize(("path", "extra"), REQUESTS)
@pytest.mark.parametrize("second_break", [0, 400])
def test_t3_a_break_at_every_byte_is_continued_without_a_repeated_or_missing_byte(
    path: str, extra: dict[str, Any], second_break: int
) -> None:
    stream = b"".join(answer_of(path, extra).lines())
    whole = answer_of(path, extra).plain()
    for cut in range(len(stream)):
        transcript = transcript_of(extra)
        client = b""
        for limit in (cut, second_break, None):
            if client.endswith(b"[DONE]\n\n"):
                break
            if how_to_go_on(transcript.delivered()) is GoOn.COMPLETE:
                client += b"data: [DONE]\n\n"
                break
            reader = JournalReader(transcript)
            attempt = b"".join(answer_of(path, extra, transcript).lines())
            client += b"".join(reader.feed(attempt[:limit]) + reader.rest())
        assert client == whole, cut


def test_comment_lines_of_others_pass_and_several_events_come_out_of_one_read() -> None:
    reader = JournalReader(Transcript(1, wants_usage=False))
    events = reader.feed(b': ping\n\ndata: {"choices":[]}\n\ndata: {"choices":[]}\n\n')
    assert events == [b": ping\n\n", b'data: {"choices":[]}\n\n', b'data: {"choices":[]}\n\n']


def test_an_entry_is_committed_only_when_the_next_line_arrives() -> None:
    transcript = Transcript(1, wants_usage=False)
    reader = JournalReader(transcript)
    reader.feed(journal_line(Opened(1, [1], REVISION)) + journal_line(Emitted(0, [5])))
    assert transcript.tokens == 0
    reader.feed(b'data: {"choi')
    assert transcript.tokens == 0
    reader.feed(b'ces":[]}\n')
    assert transcript.tokens == 1
    assert reader.rest() == [b'data: {"choices":[]}\n\n']


def test_a_resumed_stream_of_another_model_revision_is_not_accepted() -> None:
    transcript = Transcript(1, wants_usage=False)
    lines = journal_line(Opened(1, [1], REVISION)) + journal_line(Emitted(0, [5])) + b"\n"
    JournalReader(transcript).feed(lines)
    reader = JournalReader(transcript)
    assert reader.feed(journal_line(Opened(1, [1], "rev-2")) + b"\n") == []
    assert isinstance(reader.garbled, OtherRevision)


def test_a_stream_that_a_reload_carried_over_is_continued_by_those_weights_only() -> None:
    transcript = Transcript(1, wants_usage=False)
    began = journal_line(Opened(1, [1], REVISION)) + journal_line(Emitted(0, [5])) + b'data: {"choices":[]}\n\n'
    carried = journal_line(Opened(1, [1], "rev-2")) + journal_line(Emitted(0, [6])) + b'data: {"choices":[]}\n\n'
    reader = JournalReader(transcript)
    assert len(reader.feed(began + carried)) == 2
    assert reader.garbled is None
    resume = transcript.resume()
    assert resume is not None
    assert (resume.model_revision, resume.choices[0].output_token_ids) == ("rev-2", [5, 6])
    assert isinstance(_read(transcript, journal_line(Opened(1, [1], REVISION)) + b"\n").garbled, OtherRevision)
    assert _read(transcript, journal_line(Opened(1, [1], "rev-2")) + b"\n").garbled is None


def _read(transcript: Transcript, data: bytes) -> JournalReader:
    reader = JournalReader(transcript)
    reader.feed(data)
    return reader


@pytest.mark.parametrize("nonsense", [b": bireme {\n", b"data: {nonsense\n\n", b"x" * (LONGEST_LINE + 1)])
def test_what_came_before_nonsense_in_the_same_read_is_still_delivered(nonsense: bytes) -> None:
    transcript = Transcript(1, wants_usage=False)
    reader = JournalReader(transcript)
    good = journal_line(Opened(1, [1], REVISION)) + journal_line(Emitted(0, [5])) + b'data: {"choices":[]}\n\n'
    events = (
        reader.feed(good) + reader.feed(good[:0] + nonsense) if len(nonsense) > 99 else reader.feed(good + nonsense)
    )
    assert events == [b'data: {"choices":[]}\n\n']
    assert reader.garbled is not None
    assert transcript.tokens == 1


def test_an_error_event_ends_the_stream_and_no_end_marker_follows() -> None:
    reader = JournalReader(Transcript(1, wants_usage=False))
    assert reader.feed(b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n') == []
    assert reader.error == b'{"error":{"message":"x"}}'
    assert not reader.done


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_the_splitter_loses_and_invents_nothing(parts: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for part in parts for line in splitter.feed(part)]
    whole = b"".join(parts)
    assert lines == whole.split(b"\n")[:-1]


def test_the_payload_of_an_event_leaves_comments_out() -> None:
    assert payload_of(b": c\r\ndata: a\r\ndata:b\r\n\r\n") == b"a\nb"
