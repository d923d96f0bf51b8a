"""Show what happened in each start and recovery of a run: detect, abort, rejoin, load, warm, serve, with times.

Restarts of the router are in their place among those of the groups.

`bireme up` writes every transition to events.jsonl in its run directory; this reads that file, of a run that goes on as
well as of one that is over. Time 0 is the first sign of the loss that anybody saw.

Examples:
  bireme timeline ~/.local/state/bireme/smollm2/events.jsonl
  bireme timeline events.jsonl --last 1                 the newest one only
  bireme timeline events.jsonl --html recovery.html     the same as one page with a picture
"""

import argparse
import sys
from pathlib import Path

import msgspec

from bireme.cli.errors import Refused
from bireme.cli.page import page
from bireme.cli.recoveries import STEPS, Line, Recovery, recoveries
from bireme.cli.router_restarts import router_restarts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme timeline`."""
    parser.add_argument("file", type=Path, metavar="RUN.jsonl", help="the event log of a run")
    parser.add_argument("--last", type=int, metavar="N", help="only the newest N")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page there")


def run(arguments: argparse.Namespace) -> int:
    """Print the timeline, or write the page."""
    try:
        lines = read(arguments.file)
    except Refused as error:
        print(f"bireme timeline: {error}", file=sys.stderr)
        return error.exit_code
    found = sorted([*recoveries(lines), *router_restarts(lines)], key=lambda recovery: recovery.began)
    shown = found[-arguments.last :] if arguments.last else found
    if arguments.html is not None:
        arguments.html.write_text(page(arguments.file.parent.name, shown))
        return 0
    print("\n\n".join(map(text, shown)) or "nothing happened yet")
    return 0


def read(path: Path) -> list[Line]:
    """Read an event log.

    Raises:
        Refused: there is no such file, or a line is none of ours.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} can't be read ({error.strerror}): `bireme up` writes it while it runs") from None
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=Line))
        except msgspec.MsgspecError as error:
            raise Refused(f"{path}, line {number} is no line of an event log: {error}") from None
    return found


def text(recovery: Recovery) -> str:
    """One recovery as lines."""
    steps = recovery.steps()
    summary = "   ".join(f"{step} {_span(*steps[step])}" for step in STEPS if step in steps)
    lines = [f"  {moment.after_s:8.3f} s  {moment.step:7} {moment.text}" for moment in recovery.moments]
    return "\n".join([recovery.title, f"  {summary}", *lines])


def _span(first: float, last: float) -> str:
    return f"{first:.2f}" if first == last else f"{first:.2f}–{last:.2f}"
