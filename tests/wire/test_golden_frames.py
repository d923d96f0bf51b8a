"""The bytes on the wire are a promise to the neighbouring version: a change shows here and asks for WIRE_VERSION."""

import json
import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from bireme.wire import journal, routes, state
from bireme.wire.control import Formed
from tests.wire import samples

GOLDEN = Path(__file__).parent / "golden.json"


def test_every_message_encodes_to_the_committed_bytes() -> None:
    now = samples.golden()
    if os.environ.get("BIREME_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(now, indent=1) + "\n")
    assert now == json.loads(GOLDEN.read_text()), "raise WIRE_VERSION if old peers can't read this"


@pytest.mark.parametrize("name", samples.CONVERSATIONS)
def test_every_message_survives_the_round_trip(name: str) -> None:
    codec, messages = samples.CONVERSATIONS[name]
    for message in messages:
        frame = codec.frame(message)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert codec.decode(frame[4:]) == message


@pytest.mark.parametrize("name", samples.CONVERSATIONS)
def test_every_kind_of_a_conversation_has_a_sample(name: str) -> None:
    codec, messages = samples.CONVERSATIONS[name]
    kinds = codec._decoder.type
    assert {type(message) for message in messages} == set(get_args(kinds))


def test_journal_state_and_routes_survive_the_round_trip() -> None:
    for entry in samples.JOURNAL:
        line = journal.journal_line(entry)
        assert line.startswith(b": ")
        assert line.count(b"\n") == 1
        assert journal.read_journal(line) == entry
    assert state.read_state(msgspec.json.encode(samples.STATE)) == samples.STATE
    assert routes.read_routes(routes.write_routes(samples.ROUTES)) == samples.ROUTES


def test_a_newer_peers_extra_field_is_ignored() -> None:
    codec, _ = samples.CONVERSATIONS["control"]
    body = msgspec.msgpack.encode({"type": "Formed", "epoch": 9, "rank": 1, "colour": "red"})
    assert codec.decode(body) == Formed(9, 1)
