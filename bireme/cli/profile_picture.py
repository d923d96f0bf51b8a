"""A profile as an SVG file: a bar of shares for each rank, and the first steps of all ranks on one clock."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Final

from bireme.cli.profile_text import HEADS
from bireme.wire.profile import LETTERS, ProfileReport, RankProfile, Use

_COLOURS: Final = {
    Use.COMPUTE: "#2e8b57",
    Use.SAMPLING: "#7d3c98",
    Use.EXCHANGE: "#2471a3",
    Use.WAITS_STAGE: "#c0392b",
    Use.WAITS_PLAN: "#e59866",
    Use.GAP: "#bdc3c7",
}
_INK: Final = {Use.WAITS_PLAN: "#222", Use.GAP: "#222"}
_USES: Final = {letter: use for use, letter in LETTERS.items()}
_WIDTH: Final = 1000
_LABEL: Final = 120
_ROW: Final = 24
_BAR: Final = 17
_SPREAD: Final = 8.0
"""Windows that begin further apart than so many of their strips are of hosts whose clocks differ."""


def picture(report: ProfileReport) -> str:
    """The file's content."""
    ranks = report.ranks
    body = [*_key(30), *_shares(ranks, 62), *_strips(ranks, 62 + _ROW * (len(ranks) + 2))]
    height = 62 + _ROW * (2 * len(ranks) + 4)
    title = escape(f"Profile {report.id}: group {report.group}, epoch {report.epoch}, revision {report.model_revision}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#222"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="18" font-size="14">{title}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _key(y: int) -> Iterator[str]:
    for place, (use, colour) in enumerate(_COLOURS.items()):
        x = 8 + 150 * place
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y + 11}">{HEADS[use].lower()}</text>'


def _shares(ranks: Sequence[RankProfile], y: int) -> Iterator[str]:
    yield f'<text x="8" y="{y + 12}" font-weight="bold">Share of each rank\'s time</text>'
    for row, one in enumerate(ranks, 1):
        top, x = y + row * _ROW, float(_LABEL)
        yield _label(one, top)
        for use, colour in _COLOURS.items():
            width = one.share(use) * (_WIDTH - _LABEL - 8)
            yield _bar(x, top, width, colour, f"{HEADS[use].lower()} {one.share(use):.1%}")
            ink = _INK.get(use, "white")
            if width > 40:
                yield f'<text x="{x + 4:.1f}" y="{top + 13}" fill="{ink}">{one.share(use):.0%}</text>'
            x += width


def _strips(ranks: Sequence[RankProfile], y: int) -> Iterator[str]:
    first = min(one.began for one in ranks)
    last = max(one.began + one.strip_seconds for one in ranks)
    longest = max(one.strip_seconds for one in ranks)
    one_clock = last - first <= _SPREAD * longest
    length = max(last - first if one_clock else longest, 1e-9)
    said = "on one clock" if one_clock else "each from its own start: the hosts' clocks differ"
    yield f'<text x="8" y="{y + 12}" font-weight="bold">The first steps, {said}</text>'
    scale = (_WIDTH - _LABEL - 8) / length
    for row, one in enumerate(ranks, 1):
        top = y + row * _ROW
        yield _label(one, top)
        at = one.began - first if one_clock else 0.0
        bin_seconds = one.strip_seconds / max(len(one.strip), 1)
        for letter, run in groupby(one.strip):
            seconds = len(list(run)) * bin_seconds
            use = _USES[letter]
            yield _bar(_LABEL + at * scale, top, seconds * scale, _COLOURS[use], HEADS[use].lower())
            at += seconds
    bottom = y + (len(ranks) + 1) * _ROW + 12
    yield f'<text x="{_LABEL}" y="{bottom}">0 ms</text>'
    yield f'<text x="{_WIDTH - 8}" y="{bottom}" text-anchor="end">{length * 1e3:.1f} ms</text>'


def _label(one: RankProfile, top: int) -> str:
    return f'<text x="8" y="{top + 13}">stage {one.stage} rank {one.rank}</text>'


def _bar(x: float, top: int, width: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{colour}">'
        f"<title>{escape(tip)}</title></rect>"
    )
