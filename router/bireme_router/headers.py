"""Which headers pass through the router, both ways.

Hop-by-hop headers belong to one connection (RFC 9110, section 7.6.1), including those that ``Connection`` names. Ours
(x-bireme-*) are never taken from a client: they would let it speak with the router's authority.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from multidict import CIMultiDictProxy

from bireme.names import Header

_OURS: Final = "x-bireme-"
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_REWRITTEN: Final = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "accept",
        "accept-encoding",
        "expect",
        "cookie",
        str(Header.TOKEN),
        str(Header.REQUEST_ID),
        str(Header.TIMEOUT),
    }
)
_OF_THE_CONNECTION: Final = frozenset(
    ("content-length", "content-encoding", "date", "server", "set-cookie", str(Header.REQUEST_ID))
)
_KEPT_FROM_WORKERS: Final = _HOP_BY_HOP | _REWRITTEN
_KEPT_FROM_CLIENTS: Final = _HOP_BY_HOP | _OF_THE_CONNECTION


def forwarded(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """The client's headers that a worker gets."""
    dropped = _KEPT_FROM_WORKERS
    if "connection" in headers:
        dropped |= _named_by_connection(headers.getall("connection"))
    return {
        lower: value
        for name, value in headers.items()
        if (lower := name.lower()) not in dropped and not lower.startswith(_OURS)
    }


def returned(headers: Mapping[str, str]) -> dict[str, str]:
    """The worker's headers that a client gets."""
    dropped = _KEPT_FROM_CLIENTS
    if "connection" in headers:
        dropped |= _named_by_connection([headers["connection"]])
    return {lower: value for name, value in headers.items() if (lower := name.lower()) not in dropped}


def _named_by_connection(values: Iterable[str]) -> frozenset[str]:
    return frozenset(token.strip().lower() for value in values for token in value.split(",") if token.strip())
