"""Who asks, how urgently, and in which conversation: read from the request's headers.

The key is an opaque name by which fairness and rate limits count: the name that `--api-keys` gives it, else the hash of
the Authorization header, so that nothing that could be used as a credential is kept or written anywhere.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bireme.names import Header
from bireme_router.errors import BadRequest
from bireme_router.policies.priority import Priority, named

_LONGEST_SESSION: Final = 256


@dataclass(frozen=True)
class Caller:
    """``priority`` None: the header does not say. ``session``, ``zone`` empty: none."""

    key: str = ""
    priority: Priority | None = None
    session: str = ""
    zone: str = ""


def caller_of(headers: Mapping[str, str], name: str) -> Caller:
    """What the headers say; ``name`` is that of the API key, empty where none is asked for.

    Raises:
        BadRequest: the priority is none of the three, or the session is too long.
    """
    session = headers.get(Header.SESSION, "")
    if len(session) > _LONGEST_SESSION:
        raise BadRequest(f"{Header.SESSION} has {len(session)} characters, the limit is {_LONGEST_SESSION}")
    key = name or key_of(headers.get(Header.TOKEN, ""))
    return Caller(key, _priority(headers.get(Header.PRIORITY)), session, headers.get(Header.ZONE, ""))


def key_of(authorization: str) -> str:
    """The name of a caller by its Authorization header; empty for one that sends none."""
    secret = authorization.removeprefix("Bearer ").strip()
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def _priority(header: str | None) -> Priority | None:
    if header is None:
        return None
    priority = named(header)
    if priority is None:
        names = ", ".join(one.name.lower() for one in Priority)
        raise BadRequest(f"{Header.PRIORITY} is {header!r}: give one of {names}")
    return priority
