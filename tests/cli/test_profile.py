"""`bireme profile`: what it prints and draws of a report, and what it says when there is nothing to ask."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from bireme.cli.main import main
from bireme.cli.profile_picture import picture
from bireme.cli.profile_text import told
from bireme.names import Env, Exit
from bireme.wire.profile import LETTERS, ProfileReport, RankProfile, Top, Use

RANK = RankProfile(
    stage=0,
    rank=0,
    device="NVIDIA H100",
    steps=10,
    tokens=320,
    sampled=300,
    began=100.0,
    seconds=0.1,
    shares={Use.COMPUTE: 0.06, Use.EXCHANGE: 0.01, Use.WAITS_STAGE: 0.0, Use.WAITS_PLAN: 0.03, Use.GAP: 0.0},
    parts={"bireme.launch": 0.02, "bireme.layers": 0.01, "bireme.wait": 0.07},
    top=(Top("gemm<bf16>", 40, 0.05), Top("share", 20, 0.01)),
    strip="cccxpp",
    strip_seconds=0.04,
    events=900,
    limited=False,
    trace_bytes=5,
)
LATE = msgspec.structs.replace(RANK, stage=1, began=100.01, limited=True)


@pytest.fixture
def nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run directory of nobody."""
    monkeypatch.setenv(Env.RUN_DIR, str(tmp_path))


def _report(*ranks: RankProfile) -> ProfileReport:
    return ProfileReport(1, "0badcafe", "uid-0", 7, "2026-11-01", ranks)


def test_the_text_has_a_row_of_shares_for_each_rank_and_says_what_stands_out() -> None:
    lines = told(_report(RANK, LATE)).split("\n")
    assert lines[0] == "Profile 0badcafe of group uid-0, epoch 7, model revision 2026-11-01."
    assert lines[1] == "Stage 0 rank 0 on NVIDIA H100: 10 steps in 100.0 ms; 320 tokens computed, 300 drawn."
    assert lines[2] == "Ended at the limit of events: stage 1 rank 0 after 10 steps."
    row = ["0", "0", "10", "320", "10.00", "60.0%", "0.0%", "10.0%", "0.0%", "30.0%", "0.0%"]
    assert [line.split() for line in lines].count(row) == 1
    assert "50.0%    5.000     40  gemm<bf16>" in lines
    assert "STAGE  RANK  LAUNCH  LAYERS   WAIT" in lines
    assert next(line for line in lines if line.startswith("Stage 1 ")).startswith("Stage 1 spends 30% on waiting for a")
    assert not any("on gaps" in line for line in lines)


def test_a_gpu_that_was_not_seen_is_told_instead_of_shares() -> None:
    blind = msgspec.structs.replace(RANK, stage=1, unseen=True)
    lines = told(_report(RANK, blind)).split("\n")
    assert next(line for line in lines if line.startswith("WARNING")).count("stage 1 rank 0") == 1
    assert next(line.split()[-6:] for line in lines if line.split()[:2] == ["1", "0"]) == ["?"] * 6
    assert not any(line.startswith("Stage 1 spends") for line in lines)


def test_a_rank_that_only_computes_has_nothing_to_be_told() -> None:
    busy = msgspec.structs.replace(RANK, shares={Use.COMPUTE: 0.1})
    assert told(_report(busy)).endswith("Nothing but compute takes a notable share.")


def _widths(svg: str, tip: str) -> list[float]:
    found = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    return [float(bar.attrib["width"]) for bar in found if any(title.text == tip for title in bar)]


def test_the_picture_has_a_bar_for_each_share_and_the_first_steps_on_one_clock() -> None:
    svg = picture(_report(RANK, LATE))
    [first, second] = _widths(svg, "compute 60.0%")
    [waits, _] = _widths(svg, "waits plan 30.0%")
    assert first == second == pytest.approx(2 * waits)
    assert "on one clock" in svg
    assert f">{(0.01 + 0.04) * 1e3:.1f} ms<" in svg
    assert len(_widths(svg, "compute")) == 2, "a run of equal bins is one bar"


def test_ranks_whose_clocks_differ_are_drawn_from_their_own_start() -> None:
    svg = picture(_report(RANK, msgspec.structs.replace(LATE, began=160.0)))
    assert "clocks differ" in svg
    assert ">40.0 ms<" in svg


def test_every_use_has_a_letter_of_its_own() -> None:
    assert len({LETTERS[use] for use in Use}) == len(Use)


@pytest.mark.usefixtures("nothing_up")
@pytest.mark.parametrize(
    ("words", "code", "told_why"),
    [
        (["demo"], 1, "no deployment named demo"),
        (["--worker", "http://127.0.0.1:9"], Exit.BAD_CONFIGURATION, "--worker needs --token-file"),
        (["--worker", "http://127.0.0.1:9", "--token-file", "/none"], Exit.BAD_CONFIGURATION, "token can't be read"),
    ],
)
def test_what_can_not_be_asked_for_is_refused(
    words: list[str], code: int, told_why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == code
    assert told_why in capsys.readouterr().err


def test_a_worker_that_does_not_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("00")
    assert main(["profile", "--worker", "http://127.0.0.1:9/", "--token-file", str(token)]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
