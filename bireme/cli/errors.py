"""Why a verb says no.

Refused        what was asked for can't be done; the message says what to do instead
  Unreachable  whoever could tell does not answer just now; to ask again may help
"""

from typing import Final

from bireme.names import Exit

NOT_RUNNING: Final = 1
"""Exit code of "no": nothing runs, nobody answers, or not in time."""


class Refused(Exception):
    """What was asked for can't be done; ``exit_code`` is that of the command."""

    def __init__(self, message: str, exit_code: int = Exit.BAD_CONFIGURATION) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Unreachable(Refused):
    """Whoever could tell does not answer just now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_RUNNING)
