"""A recording between steps: bounded by steps, by events and by its epoch; and marks that are nothing when off."""

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from bireme.wire.control import Profile, Profiled
from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids
from bireme.wire.profile import Use
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.profiling import session as sessions
from bireme_worker.profiling.files import packed_file, raw_file
from bireme_worker.profiling.marks import MARKER, MarkedCommunicator, mark, marked
from bireme_worker.profiling.parts import Part
from bireme_worker.profiling.recorder import Recorder
from bireme_worker.rank.loading import load_runner
from bireme_worker.rank.runner import Runner
from tests.checkpoints.tiny import save_tiny
from tests.rank.conftest import MakeGate
from tests.support.rank_threads import identity

CPU = torch.device("cpu")
PATIENCE_S = 30.0


def _plan(step: int) -> Plan:
    first = step == 0
    row = Row(1, 0, 3, pack_ids([3, 4, 5]), (1,), 0) if first else Row(1, 2 + step, 1, b"", (), step)
    return Plan(1, step, (row,), (Admit(1, Sampling()),) if first else ())


@pytest.fixture
def runner(tmp_path: Path, make_gate: MakeGate) -> Runner:
    save_tiny(tmp_path / "model")
    pod = identity(tmp_path / "model", max_running_requests=8, max_batched_tokens=64)
    one = load_runner(pod, 0, pod.checkpoint, Progress())
    one.begin(SoloCommunicator(make_gate(1)))
    return one


class Rank:
    """A recorder with the serving thread's part played by the test."""

    def __init__(self, folder: Path, runner: Runner) -> None:
        self.said: SimpleQueue[Profiled] = SimpleQueue()
        self.woken = threading.Semaphore(0)
        self.recorder = Recorder(0, 0, folder, self.said.put)
        self.runner = runner
        self.step = 0
        self.recorder.enter(1, CPU, runner.remark, self.woken.release)

    def hear(self, phase: str, steps: int = 0, seconds: float = 30.0, epoch: int = 1) -> None:
        self.recorder.hear(Profile("0badcafe", epoch, phase, steps, seconds))

    def compute(self) -> None:
        plan = _plan(self.step)
        self.recorder.turn(plan)
        self.runner.collect(self.runner.launch(plan))
        self.step += 1

    def compute_until_it_speaks(self) -> Profiled:
        for _ in range(400):
            if not self.said.empty():
                break
            self.compute() if self.step < 12 else self.recorder.turn(Plan(1, self.step, ()))
            threading.Event().wait(0.01)  # other threads of this process have something to do
        return self.said.get(timeout=PATIENCE_S)


@pytest.fixture
def rank(tmp_path: Path, runner: Runner) -> Iterator[Rank]:
    rank = Rank(tmp_path, runner)
    yield rank
    rank.recorder.leave()
    assert MARKER.make is None


def test_as_many_steps_are_recorded_as_were_asked_for_and_their_trace_is_left(rank: Rank, tmp_path: Path) -> None:
    old = raw_file(tmp_path, "00000000", (0, 0))
    old.parent.mkdir()
    old.write_text("of an earlier one")
    rank.hear("Prepare", steps=3)
    assert rank.compute_until_it_speaks() == Profiled("0badcafe", 0)
    rank.hear("Record")
    said = rank.compute_until_it_speaks()
    assert said.report is not None, said.error
    assert (said.report.steps, said.report.tokens, said.report.sampled) == (3, 3, 3)
    assert not said.report.limited
    assert said.report.share(Use.COMPUTE) > 0
    assert {Part.LAUNCH, Part.PLAN, Part.LAYERS, Part.HEAD, Part.SAMPLING} <= set(said.report.parts)
    assert list(old.parent.iterdir()) == [packed_file(tmp_path, "0badcafe", (0, 0))]


def test_a_recording_ends_at_its_limit_of_events_and_says_so(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sessions.MOST_EVENTS, "cpu", 1)
    rank.hear("Prepare", steps=5)
    rank.compute_until_it_speaks()
    rank.hear("Record")
    said = rank.compute_until_it_speaks()
    assert said.report is not None, said.error
    assert (said.report.steps, said.report.limited) == (1, True)


def test_a_recording_ends_by_time_where_no_step_comes(rank: Rank) -> None:
    rank.hear("Prepare", steps=500, seconds=0.1)
    rank.compute_until_it_speaks()
    while rank.woken.acquire(blocking=False):
        pass
    rank.hear("Record")
    rank.compute()
    for _ in range(600):
        if rank.said.empty() and rank.woken.acquire(timeout=0.05):
            rank.recorder.turn(None)
    report = rank.said.get(timeout=PATIENCE_S).report
    assert report is not None
    assert report.steps == 1


@pytest.mark.parametrize("recording", [False, True])
def test_a_profile_ends_with_its_epoch(rank: Rank, *, recording: bool) -> None:
    rank.hear("Prepare", steps=500)
    if recording:
        rank.compute_until_it_speaks()
        rank.hear("Record")
        rank.compute()
    rank.recorder.leave()
    said = rank.said.get(timeout=PATIENCE_S)
    assert (said.report, said.error) == (None, "the epoch ended")


def test_a_profile_of_another_epoch_or_beside_another_is_refused(rank: Rank) -> None:
    rank.hear("Prepare", epoch=2)
    assert rank.said.get(timeout=PATIENCE_S).error == "it is not in that epoch"
    rank.hear("Prepare", steps=500)
    rank.recorder.hear(Profile("11111111", 1, "Prepare", 5, 1.0))
    assert rank.said.get(timeout=PATIENCE_S).error == "it still ends the profile before"
    rank.hear("Stop")
    rank.recorder.turn(None)
    assert rank.said.get(timeout=PATIENCE_S).error == "it was given up"


def test_a_trace_that_can_not_be_written_is_told_and_the_rank_goes_on(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file where the folder should be")
    rank.hear("Prepare", steps=3)
    assert "profile" in rank.compute_until_it_speaks().error
    rank.compute()


def test_marks_are_nothing_while_nobody_listens(runner: Runner, make_gate: MakeGate) -> None:
    assert mark(Part.LAYERS) is mark(Part.PLAN)
    plain = SoloCommunicator(make_gate(2))
    assert marked(plain) is plain


def test_every_part_of_a_step_is_marked_for_who_listens(
    runner: Runner, make_gate: MakeGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_parts: list[str] = []
    seen: list[tuple[str, ...]] = []

    @contextlib.contextmanager
    def make(part: str) -> Iterator[None]:
        open_parts.append(part)
        seen.append(tuple(open_parts))
        yield
        open_parts.pop()

    monkeypatch.setattr(MARKER, "make", make)
    runner.remark()
    runner.collect(runner.launch(_plan(0)))
    monkeypatch.setattr(MARKER, "make", None)
    runner.remark()
    assert {(Part.LAUNCH, Part.PLAN), (Part.LAUNCH, Part.LAYERS), (Part.LAUNCH, Part.SAMPLING), (Part.COLLECT,)} <= set(
        seen
    )
    before = len(seen)
    runner.collect(runner.launch(_plan(1)))
    assert len(seen) == before
    assert isinstance(marked(MarkedCommunicator(SoloCommunicator(make_gate(2)))), SoloCommunicator)


def test_the_trace_is_one_that_viewers_read(rank: Rank, tmp_path: Path) -> None:
    rank.hear("Prepare", steps=2)
    rank.compute_until_it_speaks()
    rank.hear("Record")
    assert rank.compute_until_it_speaks().report is not None
    content = json.loads(gzip.decompress(packed_file(tmp_path, "0badcafe", (0, 0)).read_bytes()))
    assert {event.get("name") for event in content["traceEvents"]} >= {"bireme.layers", "bireme.plan"}


def test_transfers_are_marked_only_where_there_are_other_ranks(
    make_gate: MakeGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def make(part: str) -> contextlib.AbstractContextManager[None]:
        seen.append(part)
        return contextlib.nullcontext()

    monkeypatch.setattr(MARKER, "make", make)
    alone = marked(SoloCommunicator(make_gate(2)))
    alone.all_reduce(torch.ones(3))
    assert not seen
    alone.size = 2
    alone.all_reduce(torch.ones(3))
    alone.all_gather(torch.ones(3))
    assert seen == [Part.SUM, Part.GATHER]
