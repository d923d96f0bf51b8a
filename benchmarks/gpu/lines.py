"""The lines that are measured, what they must reach, and how figures are judged and shown. No torch here.

A bound is a number, or a factor of a name: ``0.9*peer`` (the peer's figure of this call, else the recorded one) or
``0.9*A3.offline`` (another figure of this call).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Line:
    """One figure. ``less``: smaller is better. ``recorded``: the peer's figure of an earlier call on H100s."""

    key: str
    about: str
    unit: str
    reach: str
    aim: str
    less: bool = True
    recorded: float | None = None


def _more(key: str, about: str, unit: str, reach: str, aim: str, recorded: float | None = None) -> Line:
    return Line(key, about, unit, reach, aim, less=False, recorded=recorded)


def _kills(layout: str, kind: str) -> list[Line]:
    where = {"tp": "TP2", "pp": "PP2"}[layout]
    about = f"8B {where}, rank killed inside a {kind}, median of all"
    return [
        Line(f"A13.{layout}.{kind}.unready", f"{about}: not ready", "s", "2", "0.5"),
        Line(f"A13.{layout}.{kind}.serving", f"{about}: serving again", "s", "10", "5"),
        Line(f"A13.{layout}.{kind}.changed", f"{about}: survivors with another pid or load counter", "", "0", "0"),
    ]


RATE: Final = "output tok/s"
_ONE: Final = "{}*A2.uniform256"
LINES: Final[tuple[Line, ...]] = (
    Line("A1.500", "8B batch 1, context 500, inter-token latency", "ms", "1*peer", "6.2", recorded=6.53),
    Line("A1.4000", "8B batch 1, context 4000, inter-token latency", "ms", "1*peer", "6.4", recorded=6.70),
    _more("A2.uniform256", "8B uniform256", RATE, "0.9*peer", "1.1*peer", 8320),
    _more("A2.fixed", "8B 128 in, 2048 out, 256 at once", RATE, "0.9*peer", "1.1*peer", 10436),
    _more("A3.offline", "8B sharegpt1000 capped at 1024", RATE, "0.9*peer", "1.1*peer", 10105),
    _more("A3.http", "the same through HTTP and router, 256 clients", RATE, "0.9*A3.offline", "0.97*A3.offline"),
    _more("A4.rate", "8B 20k in, 2k out, 8 at once", RATE, "400", "470"),
    Line("A4.p99", "8B decodes beside long prefills: p99 ÷ median inter-token latency", "×", "3", "2"),
    _more("A5.uniform256", "Qwen3-0.6B uniform256", RATE, "0.9*peer", "1.1*peer", 19100),
    Line("A5.latency", "Qwen3-0.6B batch 1, context 500, inter-token latency", "ms", "1.7", "1.5", recorded=1.7),
    Line("A5.idle", "Qwen3-0.6B decode steps: GPU without a kernel", "%", "5", "1"),
    Line("A6.int8", "70B shape, int8, TP2, batch 1, context 500, inter-token latency", "ms", "15.5", "13.5"),
    Line("A6.fp8", "70B shape, fp8, TP2, batch 1, context 500, inter-token latency", "ms", "15.5", "13.5"),
    Line("A7.500", "8B TP2 batch 1, context 500, inter-token latency", "ms", "1*peer", "3.9", recorded=4.22),
    Line("A7.4000", "8B TP2 batch 1, context 4000, inter-token latency", "ms", "1*peer", "3.9", recorded=4.31),
    _more("A7.uniform256", "8B TP2 uniform256", RATE, "0.9*peer", "1.1*peer", 13377),
    _more("A8.512", "8B PP2, 512 at once on two GPUs against 256 on one", RATE, _ONE.format(1.7), _ONE.format(1.85)),
    _more("A8.uniform256", "8B PP2 uniform256", RATE, "1.35*A2.uniform256", "1.45*A2.uniform256", 10606),
    _more("A8.share", "8B PP2 sharegpt1000 capped at 1024", RATE, "1.35*A3.offline", "1.45*A3.offline", 13411),
    Line("A9.8", "all-reduce TP2 in a graph, 8 KB", "µs", "8", "6"),
    Line("A9.32", "all-reduce TP2 in a graph, 32 KB", "µs", "9", "7"),
    Line("A9.128", "all-reduce TP2 in a graph, 128 KB", "µs", "9", "7"),
    Line("A9.512", "all-reduce TP2 in a graph, 512 KB", "µs", "10", "8"),
    _more("A10.ratio", "8B batch 1 decode, eager ÷ graph", "×", "1.4", "1.6"),
    Line("A11.load", "8B, 16 GB from a warm page cache to the GPU", "s", "6", "3"),
    Line("A11.cold", "8B, process start to first token, Triton cache cold", "s", "20", "10", recorded=73),
    Line("A11.warm", "8B, process start to first token, Triton cache warm", "s", "20", "10", recorded=72),
    Line("A12.gap", "8B reload under load, longest gap without a token", "s", "1", "0.45"),
    Line("A12.failed", "8B reload under load, failed requests", "", "0", "0"),
    *_kills("tp", "graph"),
    *_kills("tp", "prefill"),
    *_kills("pp", "graph"),
    *_kills("pp", "prefill"),
    _more("A14.decode", "attention, decode, 8B: share of the copy bandwidth of this call", "%", "70", "85"),
    _more("A14.prefill", "attention, prefill, 8B: share of the matrix rate of this call", "%", "55", "70"),
)  # fmt: skip
BY_KEY: Final[Mapping[str, Line]] = {line.key: line for line in LINES}


@dataclass
class Figures:
    """What this call found: ours and the peers', by key; notes; failures and what was left out, by case."""

    ours: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    def bound(self, line: Line, text: str) -> float | None:
        """The number that ``text`` means, if everything in it is known."""
        factor, _, name = text.partition("*")
        if not name:
            return float(factor)
        other = self.peers.get(line.key, line.recorded) if name == "peer" else self.ours.get(name)
        return None if other is None else float(factor) * other

    def verdict(self, line: Line) -> str:
        """How far ``line`` came."""
        value, reach, aim = self.ours[line.key], self.bound(line, line.reach), self.bound(line, line.aim)
        if reach is None or aim is None:
            return "?"
        if _meets(line, value, aim):
            return "aim"
        return "reach" if _meets(line, value, reach) else "MISSED"

    def peer(self, line: Line) -> str:
        """The peer's figure, and whether it is of this call."""
        if line.key in self.peers:
            return _short(self.peers[line.key])
        return "-" if line.recorded is None else f"({_short(line.recorded)})"


def _meets(line: Line, value: float, bound: float) -> bool:
    return value <= bound if line.less else value >= bound


def table(figures: Figures) -> str:
    """Line, figure, peer (in brackets: recorded in another call), reach, aim, verdict."""
    rows: list[tuple[str, ...]] = [("line", "case", "value", "peer", "reach", "aim", "met")]
    for line in LINES:
        if line.key in figures.ours:
            bounds = (figures.bound(line, line.reach), figures.bound(line, line.aim))
            shown = ("-" if bound is None else f"{'≤' if line.less else '≥'} {_short(bound)}" for bound in bounds)
            value = f"{_short(figures.ours[line.key])} {line.unit}".strip()
            rows.append((line.key, line.about, value, figures.peer(line), *shown, figures.verdict(line)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"FAILED {case}: {text}" for case, text in figures.failed.items()]
    lines += [f"left out {case}: {text}" for case, text in figures.dropped.items()]
    return "\n".join(lines)


def performance_rows(figures: Figures, machine: str) -> str:
    """Rows for docs/performance.md."""
    rows = []
    for line in LINES:
        if line.key in figures.ours:
            aim, peer = figures.bound(line, line.aim), figures.peer(line)
            beside = "" if peer == "-" else f"; peer {peer.strip('()')}"
            beside += " (recorded in another call)" if peer.startswith("(") else ""
            note = f"; {figures.notes[line.key]}" if line.key in figures.notes else ""
            missed = "" if figures.verdict(line) in {"aim", "?"} else " (missed)"
            wanted = "–" if aim is None else f"{'≤' if line.less else '≥'} {_short(aim)}"
            found = f"{_short(figures.ours[line.key])}{missed}{beside}{note}"
            about = f"{line.key} {line.about}" + (f", {line.unit}" if line.unit else "")
            rows.append(f"| {about} | {wanted} | {found} | {machine} | `benchmarks/gpu/suite.py` |")
    return "\n".join(rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
