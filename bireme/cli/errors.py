"""Why a verb says no.

Refused      what was asked for can't be done; the message says what to do instead
"""

from bireme.names import Exit


class Refused(Exception):
    """What was asked for can't be done; ``exit_code`` is that of the command."""

    def __init__(self, message: str, exit_code: int = Exit.BAD_CONFIGURATION) -> None:
        super().__init__(message)
        self.exit_code = exit_code
