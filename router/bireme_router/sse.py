"""Server-sent events cut into lines, wherever the network cut the bytes (WHATWG HTML, section 9.2).

Lines end with LF or CRLF. A lone CR, which the standard also allows, is not a line end here: JSON never holds one and
no engine sends it.
"""

from typing import Final

from bireme.wire.errors import Garbled

LONGEST_LINE: Final = 64 * 1024 * 1024
"""Bytes; the longest real line is a journal's first, with the ids of a long prompt."""


class LineSplitter:
    """Incremental: bytes in, complete lines out, the rest kept."""

    __slots__ = ("_held", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def is_empty(self) -> bool:
        """Whether the last line is complete."""
        return not self._parts

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their LF (a CR before it stays).

        Raises:
            Garbled: a line is longer than any real one.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            lines[0] = b"".join(self._parts) + lines[0]
            self._parts.clear()
            self._held = 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
            if self._held > LONGEST_LINE:
                raise Garbled(f"a line of more than {LONGEST_LINE} bytes in an event stream")
        return lines


def payload_of(event: bytes) -> bytes:
    """The data of one whole event; comment lines are left out, several data lines are joined by LF."""
    data = (line.rstrip(b"\r")[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(part.removeprefix(b" ") for part in data)


def event_of(payload: bytes) -> bytes:
    """One event with this data."""
    return b"data: " + payload + b"\n\n"
