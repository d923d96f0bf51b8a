"""The lines that are measured, what they must reach, and how figures are judged and shown. No torch here.

A bound is a number, empty (only measured), or a factor of a name: ``0.9*peer`` (the peer's figure of this call, else
the recorded one) or ``0.9*A3.offline`` (another figure of this call).
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


def _kills(prefix: str, where: str, kind: str) -> list[Line]:
    about = f"8B {where}, rank killed inside a {kind}, median of all"
    return [
        Line(f"{prefix}.{kind}.unready", f"{about}: not ready", "s", "2", "0.5"),
        Line(f"{prefix}.{kind}.serving", f"{about}: serving again", "s", "10", "5"),
        Line(f"{prefix}.{kind}.changed", f"{about}: survivors with another pid or load counter", "", "0", "0"),
        Line(f"{prefix}.{kind}.lost", f"{about}: streams that failed", "", "0", "0"),
    ]


def _large(prefix: str, where: str, floor_ms: float) -> list[Line]:
    about = f"175B shape, fp8, {where}, context 500"
    return [
        Line(f"{prefix}.latency", f"{about}, batch 1, inter-token latency", "ms", "", f"{1.3 * floor_ms:.1f}"),
        _more(f"{prefix}.batch", f"{about}: largest batch with p99 inter-token latency ≤ 50 ms", "", "", ""),
    ]


def _shares(name: str, about: str) -> list[Line]:
    uses = {"compute": "computing", "exchange": "sums and sending", "bubble": "waiting", "gap": "host's gaps"}
    return [
        Line(f"{name}.{use}", f"profile of {about}: {said}, mean of ranks", "%", "", "") for use, said in uses.items()
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
    Line("A4.p99.256", "the same with 256 tokens a step", "×", "3", "2"),
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
    *(line for kind in ("graph", "prefill") for line in _kills("A13.tp", "TP2", kind)),
    *(line for kind in ("graph", "prefill") for line in _kills("A13.pp", "PP2", kind)),
    _more("A14.decode", "attention, decode, 8B: share of the copy bandwidth of this call", "%", "70", "85"),
    _more("A14.prefill", "attention, prefill, 8B: share of the matrix rate of this call", "%", "55", "70"),
    *_shares("P1", "8B served, 32 streams, `bireme profile`"),
    Line("M1.latency", "70B bf16 TP4, batch 1, context 500, inter-token latency", "ms", "16", "14"),
    _more("M2.ratio", "70B int8 batch 1: latency of TP2 ÷ TP4", "×", "1.6", "1.75"),
    _more("M3.pp4", "8B PP4, 1,024 at once against 256 on one GPU", RATE, _ONE.format(2.8), _ONE.format(3.2)),
    _more("M3.tp2pp2", "8B TP2 × PP2, 1,024 at once against 256 on one", RATE, _ONE.format(2.8), _ONE.format(3.2)),
    *(Line(f"M4.{size}", f"all-reduce TP4 in a graph, {size} KB", "µs", "12", "10") for size in (8, 32, 128, 512)),
    *_large("M5.tp4", "TP4", 13.5),
    *_large("M5.tp2pp2", "TP2 × PP2", 27.0),
    *(line for kind in ("graph", "prefill") for line in _kills("M6", "TP2 × PP2", kind)),
    *_shares("M7.70b", "70B bf16 TP4, batch 1"),
    *_shares("M7.175b", "175B fp8 TP4, batch 1"),
    _more("H2.ratio", "70B int8 batch 1: latency of one GPU ÷ TP2", "×", "1.6", "1.75"),
    Line("H3.different", "8B TP2 × PP2, two ranks on each GPU: requests whose ids are not those of TP2", "", "0", "0"),
    *_large("H5.tp2", "TP2", 27.0),
    *_large("H5.pp2", "PP2", 54.0),
    *(line for kind in ("graph", "prefill") for line in _kills("H6", "TP2 × PP2, two ranks on each GPU", kind)),
    *_shares("H7", "175B fp8 TP2, batch 1"),
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
        if not text:
            return None
        if not name:
            return float(factor)
        other = self.peers.get(line.key, line.recorded) if name == "peer" else self.ours.get(name)
        return None if other is None else float(factor) * other

    def verdict(self, line: Line) -> str:
        """How far ``line`` came."""
        value, reach, aim = self.ours[line.key], self.bound(line, line.reach), self.bound(line, line.aim)
        if aim is None:
            return "?" if line.aim else "-"
        if reach is None and line.reach:
            return "?"
        if _meets(line, value, aim):
            return "aim"
        return "reach" if reach is not None and _meets(line, value, reach) else "MISSED"

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
            missed = "" if figures.verdict(line) in {"aim", "?", "-"} else " (missed)"
            wanted = "–" if aim is None else f"{'≤' if line.less else '≥'} {_short(aim)}"
            found = f"{_short(figures.ours[line.key])}{missed}{beside}{note}"
            about = f"{line.key} {line.about}" + (f", {line.unit}" if line.unit else "")
            rows.append(f"| {about} | {wanted} | {found} | {machine} | `benchmarks/gpu/suite.py` |")
    return "\n".join(rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
