"""The times of the cases, for the table at the end of `make e2e` and, when asked, for docs/recovery.md."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.cluster import ROOT

RECORD: Final = "BIREME_E2E_RECORD"
"""Set by `make e2e RECORD=1`: a run of all cases in which none failed writes its table into the page."""
PAGE: Final = ROOT / "docs" / "recovery.md"
_BEGIN: Final = "<!-- written by `make e2e RECORD=1` -->"
_END: Final = "<!-- end of what it writes -->"


@dataclass
class Case:
    """One test as a sentence, how long all of it took, and what took how long in it."""

    title: str
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass
class Times:
    """A row for what the cases stand on, then one for each case, in the order of the run."""

    settings: list[Case] = field(default_factory=list)
    cases: dict[str, Case] = field(default_factory=dict)
    _current: str = ""
    _began: float = field(default_factory=time.monotonic)

    def begin(self, title: str) -> None:
        """What is noted from here on belongs to this case."""
        self._current = title
        self.cases.setdefault(title, Case(title))

    def note(self, what: str, seconds: float) -> None:
        """Note what a user would wait for."""
        self.cases[self._current].notes.append(f"{what} {seconds:.1f} s")

    def setting(self, title: str, seconds: float) -> None:
        """Add a row for what many cases stand on."""
        self.settings.append(Case(title, seconds))

    def ended(self, seconds: float) -> None:
        """The current case is over."""
        self.cases[self._current].seconds = seconds

    def table(self) -> list[str]:
        """The rows as a Markdown table, and where they are from."""
        cases = (*self.settings, *self.cases.values())
        rows = [f"| {one.title} | {one.seconds:.0f} | {'; '.join(one.notes)} |" for one in cases]
        about = f"Written {time.strftime('%Y-%m-%d', time.gmtime())} on {os.cpu_count()} cores, load {_load()}: "
        about += f"all {len(rows)} rows in {(time.monotonic() - self._began) / 60:.0f} minutes."
        return ["| case | seconds | of these |", "|---|---:|---|", *rows, "", about]


def _load() -> str:
    """What the machine had to do in the last 15 minutes, our own part included."""
    return f"{os.getloadavg()[2]:.0f}"


def record(lines: list[str], page: Path = PAGE) -> None:
    """Put ``lines`` between the markers of the page."""
    head, begin, rest = page.read_text().partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    assert begin, f"{page} lacks the line {_BEGIN}"
    assert end, f"{page} lacks the line {_END}"
    page.write_text("\n".join([head + begin, "", *lines, "", end + tail]))
