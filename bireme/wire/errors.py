"""Errors of the wire. All of them mean: close this connection; none of them may end a process.

WireError
├── ConnectionLost     the other side closed or reset; retry by whatever rule the caller has
├── FrameTooLarge      a frame over the limit, sent or announced; names both numbers
├── Garbled            not a message of this conversation
├── WrongVersion       the peer speaks another wire version; names both
└── WrongToken         the peer could not prove the group token
"""


class WireError(Exception):
    """Base of all wire errors."""


class ConnectionLost(WireError):
    """The peer closed or reset the connection."""


class FrameTooLarge(WireError):
    """A frame is larger than the limit of its conversation."""


class Garbled(WireError):
    """Bytes that are no message of this conversation."""


class WrongVersion(WireError):
    """The peer speaks another wire version."""


class WrongToken(WireError):
    """The peer could not prove that it holds the group token."""
