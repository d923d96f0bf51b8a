"""Draws the pictures of the concepts page: ``python -m docsite.pictures [--check]``.

Each is a few boxes and arrows in a table here and an SVG in docs/pictures/, which shows the same on a forge, on the
site and on paper: no font, colour or script comes from outside it.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).parent.parent / "docs" / "pictures"

_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;fill:#1b2733}.s{font-size:12px;fill:#4a5a6a}.h{font-weight:600}"
    ".plain{fill:#eef2f6;stroke:#8796a5}.work{fill:#dcebfa;stroke:#2f6fb0}.lost{fill:#fbe0dc;stroke:#b5402c}"
    ".new{fill:#dff3e2;stroke:#2e7d42}.frame{fill:none;stroke:#8796a5;stroke-dasharray:5 4}"
    "line{stroke:#4a5a6a;stroke-width:1.6}"
)


@dataclass(frozen=True)
class Box:
    """A rectangle with a heading and lines below it. ``kind`` is plain, work, lost, new or frame."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    kind: str = "plain"


@dataclass(frozen=True)
class Arrow:
    """From one point to another, with a word beside it."""

    start: tuple[int, int]
    end: tuple[int, int]
    word: str = ""
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Picture:
    """``about`` is what a reader hears who can't see it."""

    name: str
    about: str
    size: tuple[int, int]
    parts: tuple[Box | Arrow, ...]


def _group(number: int, x: int) -> tuple[Box | Arrow, ...]:
    return (
        Box(x, 90, 330, 240, (f"group {number}: one copy of the model",), "frame"),
        Box(
            x + 20, 125, 290, 85, ("stage 0, the leader: layers 0–39", "HTTP · coordinator", "rank 0 … rank 7"), "work"
        ),
        Box(x + 20, 235, 290, 75, ("stage 1: layers 40–79", "rank 0 … rank 7"), "work"),
        Arrow((x + 165, 210), (x + 165, 235), "hidden states", (x + 173, 227)),
    )


def _phase(x: int, width: int, name: str, about: str, kind: str = "plain") -> Box:
    return Box(x, 175, width, 52, (name, about), kind)


def _rolled(y: int, label: str, groups: tuple[tuple[str, str], ...]) -> tuple[Box | Arrow, ...]:
    boxes = tuple(Box(190 + 150 * at, y, 135, 44, (name,), kind) for at, (name, kind) in enumerate(groups))
    return (Box(10, y, 165, 44, (label,), "frame"), *boxes)


_OLD: Final = ("revision 1", "work")
_NEW: Final = ("revision 2", "new")

PICTURES: Final = (
    Picture(
        "group",
        "Clients speak to the router, it to the leaders of two groups. Each group has two stages of eight ranks.",
        (760, 350),
        (
            Box(20, 20, 120, 42, ("clients",)),
            Box(320, 20, 140, 42, ("router",), "work"),
            Arrow((140, 41), (320, 41), "OpenAI's protocol", (170, 33)),
            *_group(0, 20),
            *_group(1, 400),
            Arrow((370, 62), (250, 88)),
            Arrow((410, 62), (530, 88)),
        ),
    ),
    Picture(
        "control",
        "The operator watches the API server and writes pods; leaders tell their state to operator and router.",
        (760, 250),
        (
            Box(20, 20, 200, 60, ("API server", "InferenceDeployment, pods")),
            Box(290, 20, 200, 60, ("operator", "observe → plan → apply"), "work"),
            Box(290, 160, 200, 60, ("router", "journal of every stream"), "work"),
            Box(560, 90, 180, 60, ("leaders of groups", "/watch: state, epoch"), "work"),
            Arrow((220, 40), (290, 40), "watch", (233, 33)),
            Arrow((290, 62), (220, 62), "write", (236, 78)),
            Arrow((560, 110), (490, 60), "state", (538, 82)),
            Arrow((560, 130), (490, 180), "state", (538, 168)),
            Arrow((120, 80), (290, 180), "leaders' pods", (105, 140)),
        ),
    ),
    Picture(
        "recovery",
        "A rank is lost: detect, abort, rejoin, load, warm, serve. The stream goes on elsewhere from the same token.",
        (760, 250),
        (
            Box(20, 20, 90, 46, ("client",)),
            Box(180, 20, 260, 46, ("group 0: tokens 1 … 41", "then a rank is lost"), "lost"),
            Box(470, 20, 270, 46, ("group 1: tokens 42 …", "same seed, same draws"), "new"),
            Arrow((180, 43), (110, 43)),
            Arrow((440, 43), (470, 43)),
            Box(20, 105, 400, 44, ("group 0 meanwhile; survivors keep their weights",), "frame"),
            _phase(20, 110, "detect", "by the kernel", "lost"),
            _phase(142, 110, "abort", "epoch ends"),
            _phase(264, 110, "rejoin", "a warm spare"),
            _phase(386, 110, "load", "its part only"),
            _phase(508, 110, "warm", "padded step"),
            _phase(630, 110, "serve", "next epoch", "new"),
        ),
    ),
    Picture(
        "rollout",
        "With maxSurge 1 and maxUnavailable 0 a third group is made first, then one old group after the other goes.",
        (660, 260),
        (
            *_rolled(15, "before", (_OLD, _OLD)),
            *_rolled(75, "one more serves", (_OLD, _OLD, _NEW)),
            *_rolled(135, "one old drained", (_NEW, _OLD, _NEW)),
            *_rolled(195, "after", (_NEW, _NEW)),
        ),
    ),
)  # fmt: skip


def draw(picture: Picture) -> str:
    """The SVG."""
    width, height = picture.size
    body = "\n".join(_box(part) if isinstance(part, Box) else _arrow(part) for part in picture.parts)
    about = escape(picture.about)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        f"<title>{about}</title>\n<style>{_STYLE}</style>\n"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#4a5a6a"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _box(box: Box) -> str:
    middle = box.x + box.width // 2
    rows = [f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>']
    whole = box.kind == "frame" and box.height > 60
    first = box.y + 22 if whole else box.y + box.height // 2 + 5 - 10 * (len(box.lines) - 1)
    for number, line in enumerate(box.lines):
        style = "h" if number == 0 else "s"
        place = f'x="{middle}" y="{first + 20 * number}" text-anchor="middle"'
        rows.append(f'<text class="{style}" {place}>{escape(line)}</text>')
    return "\n".join(rows)


def _arrow(arrow: Arrow) -> str:
    (x1, y1), (x2, y2) = arrow.start, arrow.end
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#a)"/>'
    if arrow.place is None:
        return line
    return f'{line}\n<text class="s" x="{arrow.place[0]}" y="{arrow.place[1]}">{escape(arrow.word)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures, or compare them with --check."""
    parser = argparse.ArgumentParser(prog="python -m docsite.pictures", description="Draw docs/pictures/.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when a file differs")
    check = parser.parse_args(arguments).check
    wanted = {TARGET / f"{picture.name}.svg": draw(picture) for picture in PICTURES}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            sys.stdout.write(f"{path} is out of date: run `make docs`\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
