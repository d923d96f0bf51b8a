"""What `bireme up` shows: a line for every change of a group, and on a terminal a live line of what is waited for."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bireme.api.status import ConditionStatus, GroupStatus
from bireme.names import ConditionType, Event, GroupState
from bireme_operator.plan.plan import Plan

_COLOURS = {GroupState.SERVING: "green", GroupState.FAILED: "red", GroupState.BACKING_OFF: "yellow"}
# The state's own line says these better.
_SHOWN_BY_STATE = (Event.GROUP_FAILED, Event.GROUP_LOST_PART, Event.GROUP_RELOAD_FAILED)


class Progress:
    """Prints what a plan changed. ``available`` is set from the first moment on in which a group serves."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        self.available = asyncio.Event()
        self._console = console
        self._clock = clock
        self._line: Live | None = None
        self._shown: dict[int, tuple[str, str, str]] = {}
        self._waiting: dict[int, tuple[GroupStatus, float]] = {}
        self._spinners: dict[int, Spinner] = {}

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the live line while the block runs; nothing is redrawn where output is no terminal."""
        if not self._console.is_terminal:
            yield
            return
        self._line = Live(
            console=self._console,
            get_renderable=self._waited_for,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,  # it belongs to the answer of --ask
            redirect_stderr=False,
        )
        with self._line:
            yield

    def leave_a_lost_terminal(self) -> None:
        """Write nothing any more where the live line was, if that is gone."""
        self._console.quiet = self._line is not None and not self._console.file.isatty()

    def hush(self) -> None:
        """Show no live line any more, so that other output may use the terminal."""
        if self._line is not None:
            self._line.stop()

    def told(self, plan: Plan) -> None:
        """Take note of one plan."""
        for item in plan.news:
            if item.event not in _SHOWN_BY_STATE:
                self.say(f"group {item.group}: {item.event}: {item.message}")
        for group in plan.status.groups:
            self._show(group)
        present = {group.index for group in plan.status.groups}
        self._shown = {index: shown for index, shown in self._shown.items() if index in present}
        self._waiting = {index: waited for index, waited in self._waiting.items() if index in present}
        available = next(c for c in plan.status.conditions if c.type == ConditionType.AVAILABLE)
        if available.status is ConditionStatus.TRUE and plan.status.ready_replicas:
            self.available.set()

    def say(self, text: str, style: str = "") -> None:
        """Print one line with the time of day."""
        self.show(f"{time.strftime('%H:%M:%S', time.localtime(self._clock()))}  {text}", style)

    def show(self, text: str, style: str = "") -> None:
        """Print a text as it is; a reader that is gone, or a full disk, ends nothing that serves."""
        with suppress(OSError, SystemExit):  # rich makes a SystemExit of a broken pipe
            self._console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def _show(self, group: GroupStatus) -> None:
        shown = (group.state, group.reason, group.message)
        if self._shown.get(group.index) == shown:
            return
        self._shown[group.index] = shown
        if group.state is GroupState.SERVING:
            self._waiting.pop(group.index, None)
        elif group.index not in self._waiting or self._waiting[group.index][0].state is not group.state:
            self._waiting[group.index] = (group, self._clock())
        else:
            self._waiting[group.index] = (group, self._waiting[group.index][1])
        self.say(f"group {group.index}: {in_words(group)}", _COLOURS.get(group.state, ""))

    def _waited_for(self) -> RenderableType:
        lines: list[RenderableType] = []
        for index, (group, since) in sorted(self._waiting.items()):
            text = Text(f"group {index}  {group.state} ({group.reason})  {self._clock() - since:.0f} s")
            spinner = self._spinners.setdefault(index, Spinner("dots"))
            spinner.update(text=text)
            lines.append(spinner)
        return Group(*lines)


def in_words(group: GroupStatus) -> str:
    """Return state, reason and message of a group as one line."""
    reason = "" if group.reason == "None" else f" ({group.reason})"
    message = f": {group.message}" if group.message else ""
    return f"{group.state}{reason}{message}"
