"""How long work tells whoever watches how far it is. No torch, because a command line passes these around."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


def ignore_progress(done: int, total: int) -> None:
    """The default: nobody watches."""
