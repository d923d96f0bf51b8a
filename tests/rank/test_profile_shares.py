"""Where a recorded window went: every moment once, the innermost part counts, and a GPU's gaps are told by its host."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.wire.profile import LETTERS, RankProfile, Use
from bireme_worker.profiling.digest import Event, Facts, NothingRecorded, Trace, digest
from bireme_worker.profiling.parts import Part
from bireme_worker.profiling.shares import Piece, Span, filled, innermost, of_thread, strip, union

THREAD = 7


def _event(cat: str, name: str, start: float, end: float, tid: int = THREAD) -> Event:
    return Event("X", cat, name, tid, start, end - start)


def _mark(part: Part, start: float, end: float) -> Event:
    return _event("user_annotation", part, start, end)


def _digest(*events: Event, device: str = "cpu") -> RankProfile:
    return digest(Trace(events, 10**18), Facts(1, 0, device, 1, 8, 4, False), 99)


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 60, depth: int = 3) -> list[Span]:
    """Spans of one thread: siblings don't overlap, children lie inside."""
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6, unique=True)))
    spans = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        spans.append(Span(start, end, draw(st.sampled_from(list(Part)))))
        if depth:
            spans += draw(nested(start, end, depth - 1))
    return spans


def _owner(spans: list[Span], moment: float) -> str | None:
    """The shortest span around a moment; of equal ones any has the name of one of them."""
    around = [span for span in spans if span.start <= moment < span.end]
    return min(around, key=lambda span: span.end - span.start).name if around else None


@settings(max_examples=50)
@given(nested())
def test_of_nested_parts_the_innermost_counts(spans: list[Span]) -> None:
    cut = innermost(random.Random(1).sample(spans, len(spans)))
    assert all(a.end <= b.start for a, b in pairwise(cut))
    lengths = [(span.start, span.end) for span in spans]
    for moment in [at + 0.5 for at in range(60)]:
        if len(set(lengths)) == len(lengths):  # no two parts with the same bounds, of which either may be inside
            assert _owner(cut, moment) == _owner(spans, moment)


@settings(max_examples=50)
@given(nested(), nested(), st.integers(0, 30), st.integers(1, 40))
def test_every_moment_of_a_window_has_one_use(host: list[Span], operators: list[Span], begin: int, length: int) -> None:
    window = (float(begin), float(begin + length))
    parts = [Span(max(s.start, window[0]), min(s.end, window[1]), s.name) for s in innermost(host)]
    pieces = of_thread([part for part in parts if part.end > part.start], operators)
    whole = filled(window, pieces, ())
    assert (whole[0].start, whole[-1].end) == window
    assert all(a.end == b.start for a, b in pairwise(whole))
    running = union(operators)
    for piece in whole:
        if piece.use in (Use.COMPUTE, Use.SAMPLING):
            assert any(start <= piece.start and piece.end <= end for start, end in running)


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(list(Use))), min_size=1), st.integers(1, 50))
def test_a_strip_has_the_letter_of_the_longest_use_of_each_bin(runs: list[tuple[int, Use]], bins: int) -> None:
    pieces, at = [], 0.0
    for length, use in runs:
        pieces.append(Piece(at, at + length, use))
        at += length
    letters = strip(pieces, bins, at)
    assert len(letters) == bins
    assert set(letters) <= {LETTERS[use] for _, use in runs}


def test_on_a_cpu_time_without_an_operator_is_a_gap_and_waits_are_told_apart() -> None:
    found = _digest(
        _mark(Part.LAUNCH, 0, 70), _mark(Part.PLAN, 0, 10), _mark(Part.RECEIVE, 10, 30), _mark(Part.LAYERS, 30, 60),
        _mark(Part.SUM, 40, 50), _mark(Part.SAMPLING, 60, 70), _mark(Part.WAIT, 70, 100),
        _event("cpu_op", "aten::mm", 32, 40), _event("cpu_op", "aten::t", 33, 35), _event("cpu_op", "aten::add", 42, 44),
        _event("cpu_op", "aten::argmax", 60, 70), _event("cpu_op", "aten::mm", 0, 90, tid=9),
    )  # fmt: skip
    micro = {use: round(seconds * 1e6, 3) for use, seconds in found.shares.items()}
    assert micro == {"compute": 8, "sampling": 10, "exchange": 10, "waits_stage": 20, "waits_plan": 30, "gap": 22}
    assert found.seconds == pytest.approx(1e-4)
    assert {top.name: round(top.seconds * 1e6, 3) for top in found.top}["aten::mm"] == 6
    assert (found.steps, found.stage, found.trace_bytes, found.began) == (1, 1, 99, 1e9)


def test_on_a_gpu_its_kernels_count_and_the_host_says_why_it_idles() -> None:
    found = _digest(
        _mark(Part.LAUNCH, 0, 20), _mark(Part.LAYERS, 5, 15), _mark(Part.WAIT, 20, 80), _mark(Part.LAUNCH, 80, 100),
        _event("kernel", "gemm", 10, 30), _event("kernel", "share", 30, 40), _event("kernel", "take", 40, 45),
        _event("kernel", "softmax", 45, 50), _event("gpu_user_annotation", Part.SAMPLING, 45, 52),
        _event("kernel", "_choose", 52, 56), _event("gpu_memcpy", "Memcpy DtoH", 90, 110),
        _event("cpu_op", "aten::mm", 5, 15),
    )  # fmt: skip
    micro = {use: round(seconds * 1e6, 3) for use, seconds in found.shares.items()}
    # Idle: 0–10 and 80–90 while the host launches, 50–52 and 56–80 while it waits for a plan.
    assert micro == {"compute": 40, "sampling": 9, "exchange": 10, "waits_stage": 5, "waits_plan": 26, "gap": 20}
    assert [top.name for top in found.top][:3] == ["gemm", "Memcpy DtoH", "share"]


def test_a_gpu_of_which_nothing_was_recorded_is_told() -> None:
    host = _mark(Part.LAUNCH, 0, 20), _mark(Part.WAIT, 20, 80), _event("cuda_runtime", "cudaGraphLaunch", 5, 9)
    assert _digest(*host, device="NVIDIA H200").unseen
    assert not _digest(*host, _event("kernel", "gemm", 10, 30), device="NVIDIA H200").unseen
    assert not _digest(*host).unseen


def test_a_trace_without_a_step_says_so() -> None:
    with pytest.raises(NothingRecorded):
        _digest(_mark(Part.WAIT, 0, 10))
