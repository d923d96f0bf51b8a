"""Why `bireme up` can't start or go on.

LocalError            carries the exit code of the command
  AlreadyRunning      the same deployment is up already
  PortTaken           a port that is needed belongs to another process
  PathTooLong         the run directory leaves no room for a socket's path
  RunDirUnusable      the run directory can't be made or written
  NoSuchAddress       the router can't listen where it should
  NeverStarts         every group failed before it ever served
  RouterFailed        the router's configuration can't work
"""

from bireme.names import Exit


class LocalError(Exception):
    """The message says what to do; ``exit_code`` is that of the command."""

    exit_code: int = Exit.BAD_CONFIGURATION


class AlreadyRunning(LocalError):
    """The same deployment is up already."""


class PortTaken(LocalError):
    """A port that is needed belongs to another process."""


class PathTooLong(LocalError):
    """The run directory leaves no room for a socket's path."""


class RunDirUnusable(LocalError):
    """The run directory can't be made or written."""


class NoSuchAddress(LocalError):
    """The router can't listen where it should, and nobody else does."""


class NeverStarts(LocalError):
    """Every group failed before it ever served."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RouterFailed(LocalError):
    """The router ended because of its configuration."""
