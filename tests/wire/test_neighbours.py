"""What crosses between operator or router and worker is understood by the release next to theirs, in either direction.

`previous.json` has what the release before said, byte for byte; golden.json of a release is the next one's previous.
Spares are left out: before this release nobody adopted one.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.wire import WIRE_VERSION, journal, requests, routes, state
from bireme.wire.errors import Garbled, WrongVersion
from tests.wire import samples

PREVIOUS: dict[str, str] = json.loads((Path(__file__).parent / "previous.json").read_text())
OUTSIDE: tuple[Any, ...] = (
    state.StateDocument,
    state.StageState,
    state.RankState,
    state.ReloadState,
    requests.Limits,
    state.DrainRequest,
    state.UndrainRequest,
    state.ReloadRequest,
    state.AbortRequest,
    state.LeaderRequest,
    state.AdoptRequest,
    journal.Opened,
    journal.Emitted,
    journal.Handover,
    journal.Extension,
    journal.Resume,
    journal.ResumedChoice,
    routes.Routes,
    routes.Route,
)
"""All that operator and router exchange with workers, and operators with routers."""
KINDS = {kind.__name__: kind for kind in OUTSIDE}


def said(version: int, **more: object) -> bytes:
    """What a stage of this wire version says of itself."""
    content: dict[str, object] = json.loads(msgspec.json.encode(samples.STATE))
    return json.dumps({**content, "v": version, **more}).encode()


@pytest.mark.parametrize("name", [name for name in PREVIOUS if name.startswith("json/")])
def test_a_document_of_the_release_before_is_read(name: str) -> None:
    text = PREVIOUS[name]
    read = msgspec.json.decode(text, type=KINDS[name.removeprefix("json/")])
    content = json.loads(text)
    assert content.items() <= json.loads(msgspec.json.encode(read)).items()


@pytest.mark.parametrize("name", [name for name in PREVIOUS if name.startswith("journal/")])
def test_a_journal_of_the_release_before_is_read(name: str) -> None:
    entry = journal.read_journal(PREVIOUS[name].encode())
    assert journal.journal_line(entry).decode() == PREVIOUS[name]


@pytest.mark.parametrize("kind", OUTSIDE, ids=lambda kind: kind.__name__)
def test_what_a_later_release_adds_is_ignored(kind: Any) -> None:
    assert not kind.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION, WIRE_VERSION + 1])
def test_a_stage_of_a_neighbouring_version_is_understood(version: int) -> None:
    read = state.read_state(said(version, colour="red"))
    assert read == msgspec.structs.replace(samples.STATE, v=version)


@pytest.mark.parametrize("version", [WIRE_VERSION - 2, WIRE_VERSION + 2])
@pytest.mark.parametrize("more", [{}, {"limits": "of another kind"}])
def test_a_stage_further_off_is_refused_with_the_numbers_whatever_else_it_says(version: int, more: Any) -> None:
    with pytest.raises(WrongVersion, match=f"version {version}, .* {WIRE_VERSION - 1} to {WIRE_VERSION + 1}"):
        state.read_state(said(version, **more))


@pytest.mark.parametrize("line", [b"nonsense", said(WIRE_VERSION, limits="of another kind"), b'{"v": "1"}'])
def test_what_is_no_document_is_not_called_another_version(line: bytes) -> None:
    with pytest.raises(Garbled):
        state.read_state(line)
