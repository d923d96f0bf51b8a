"""Waits for the end of what a verb asked for, and shows each group's way there. Ctrl-C ends the waiting only."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from bireme.cli.errors import NOT_RUNNING, Refused, Unreachable
from bireme.cli.target import Content, Target, conditions, groups
from bireme.names import ConditionType, Exit, Reason

Goal = Callable[[Content], int | None]
"""The exit code once it has come to an end, None until then."""


def add_arguments(parser: argparse.ArgumentParser, longest: float) -> None:
    """Declare how long the end is waited for."""
    parser.add_argument(
        "--timeout", type=float, default=longest, metavar="SECONDS", help="how long to wait for the end (%(default)g)"
    )
    parser.add_argument("--no-wait", action="store_true", help="ask for it and return at once")


def follow(target: Target, goal: Goal, timeout_s: float) -> int:
    """Show the groups at every change until ``goal`` is reached.

    Raises:
        Refused: it takes longer, or nobody looks after the deployment any more.
    """
    deadline = time.monotonic() + timeout_s
    shown: dict[str, str] = {}
    while time.monotonic() < deadline:
        target.check_alive()
        try:
            content = target.read()
        except Unreachable as error:
            show(shown, "", str(error))  # an API server that restarts is asked again
        else:
            shown.pop("", None)
            for group in groups(content):
                show(shown, str(group["index"]), line_of(group))
            if (code := goal(content)) is not None:
                return code
        time.sleep(target.poll_s)
    raise Refused("it takes longer than --timeout; it goes on: `bireme status` shows how far it is", NOT_RUNNING)


def show(shown: dict[str, str], key: str, text: str) -> None:
    """Print a line unless it is what was printed last for that key."""
    if shown.get(key) != text:
        shown[key] = text
        print(text, flush=True)


def line_of(group: Content) -> str:
    """One group in one line."""
    reason = "" if group["reason"] == Reason.NONE else f" ({group['reason']})"
    message = f": {group['message']}" if group.get("message") else ""
    return f"group {group['index']}  {group.get('modelRevision', '')}  {group['state']}{reason}{message}"


def is_current(content: Content, generation: int) -> bool:
    """Whether the status is about that generation of the spec, or a later one."""
    return bool((content.get("status") or {}).get("observedGeneration", 0) >= generation)


def settled(content: Content) -> int | None:
    """0 when every group serves what is wanted; else the code of what will not come right by itself."""
    found = conditions(content)
    if _is_true(found, ConditionType.READY):
        return 0
    if any(group["reason"] == Reason.RELOAD_FAILED for group in groups(content)):
        return Exit.BAD_CHECKPOINT
    if _is_true(found, ConditionType.STALLED):
        stalled = found[ConditionType.STALLED]
        print(f"stalled: {stalled['reason']}: {stalled['message']}")
        return NOT_RUNNING
    return None


def _is_true(found: dict[str, Any], kind: ConditionType) -> bool:
    return bool(found.get(kind, {}).get("status") == "True")
