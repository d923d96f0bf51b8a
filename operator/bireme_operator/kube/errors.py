"""Why the API server did not do what it was asked, by what the caller should do next.

KubeError               the message has the server's own words
  NotFound              the object is not there
  AlreadyExists         an object of that name is there
  Conflict              the object is another one or another version than thought: look again
  Refused               the server will never accept this object as it is (400, 422, and 403 by admission)
    QuotaExceeded       a ResourceQuota of the namespace is used up: wait
    NamespaceEnding     the namespace is being deleted: give up
  Unavailable           the server is overloaded, restarting or out of reach: try again later
  NoCluster             no kubeconfig says where the server is
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_UNTYPED: Final = "failed to create typed patch object"
"""What is applied does not fit the kind's fields: the server calls that an internal error, every time."""


class KubeError(Exception):
    """The message has the server's own words."""


class NotFound(KubeError):
    """The object is not there."""


class AlreadyExists(KubeError):
    """An object of that name is there."""


class Conflict(KubeError):
    """The object is another one or another version than thought."""


class Refused(KubeError):
    """The server will never accept this object as it is."""


class QuotaExceeded(Refused):
    """A ResourceQuota of the namespace is used up."""


class NamespaceEnding(Refused):
    """The namespace is being deleted."""


class Unavailable(KubeError):
    """The server is overloaded, restarting or out of reach."""


class NoCluster(KubeError):
    """No kubeconfig says where the server is."""


def error_of(code: int, body: str | None) -> KubeError:
    """Return the error for an answer with HTTP ``code`` and the body of a `Status` object."""
    status = _status(body)
    message = str(status.get("message") or body or f"HTTP {code} without a body")
    reason = str(status.get("reason") or "")
    if code == 404:
        return NotFound(message)
    if code == 409:
        return AlreadyExists(message) if reason == "AlreadyExists" else Conflict(message)
    if code == 403:
        return _forbidden(message, status)
    if code == 422 and _is_another(status):
        return Conflict(message)
    if code in {400, 405, 413, 415, 422} or _UNTYPED in message:
        return Refused(message)
    return Unavailable(f"HTTP {code}: {message}")


def _is_another(status: Mapping[str, Any]) -> bool:
    """Whether what was to be applied to one object would have been applied to another of its name."""
    causes = (status.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def _forbidden(message: str, status: Mapping[str, Any]) -> KubeError:
    causes = {cause.get("reason") for cause in (status.get("details") or {}).get("causes") or ()}
    if "NamespaceTerminating" in causes:
        return NamespaceEnding(message)
    if "exceeded quota" in message:
        return QuotaExceeded(message)
    return Refused(message)


def _status(body: str | None) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body or "")
    except msgspec.MsgspecError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
