"""The three classes of a request, and how a client asks for one.

`x-bireme-priority` names it; else the body's `priority` tells, an integer as in vLLM: negative before others, positive
after them. The body's number goes on to the worker, which orders its own queue by it.
"""

from enum import IntEnum


class Priority(IntEnum):
    """Lower goes first."""

    INTERACTIVE = 0
    """A person waits: groups keep slots for it, its queue is served first."""
    STANDARD = 1
    """The default."""
    BATCH = 2
    """Nobody waits: takes what the others leave."""


def named(name: str) -> Priority | None:
    """The class with this name, in any case."""
    return Priority.__members__.get(name.strip().upper())


def of_number(number: int) -> Priority:
    """The class of a body's `priority`."""
    if number < 0:
        return Priority.INTERACTIVE
    return Priority.BATCH if number > 0 else Priority.STANDARD
