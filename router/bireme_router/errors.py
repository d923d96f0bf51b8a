"""Why a request got no answer from a group. Each becomes OpenAI's error object with its own status code.

RouterError
├── BadRequest         400, 405, 413   the client's mistake; nothing was sent
├── Unauthorized       401             no API key, or an unknown one
├── NoRoute            404             no such model or path
├── NotTaken           429, 503, 504   nothing was processed: wait and ask again (Retry-After)
├── DeadlinePassed     504             its time is over, part of it may have been computed
├── GroupsLost         502             sent, and its group was lost, as often as --retry-attempts allows
├── WorkerRefused      a worker's own refusal, passed on byte for byte
└── EngineFailed       500             the engine reported an error inside its answer

ClientLeft                             there is nobody to answer to
"""

import msgspec

from bireme.names import Admission


class RouterError(Exception):
    """Base. ``status`` is the HTTP code, ``kind`` OpenAI's error type."""

    kind = "server_error"

    def __init__(self, status: int, message: str, retry_after_s: int = 0, code: str | None = None) -> None:
        super().__init__(message)
        self.status = int(status)
        self.message = message
        self.retry_after_s = retry_after_s
        self.code = code

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> dict[str, str]:
        """Headers of the HTTP answer."""
        return {"content-type": "application/json"}


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete."""


class BadRequest(RouterError):
    """The request can't be right as it is; the message says what to change."""

    kind = "invalid_request_error"

    def __init__(self, message: str, status: int = Admission.NEVER_FITS) -> None:
        super().__init__(status, message)


class Unauthorized(RouterError):
    """No API key, or one that is not known."""

    kind = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(Admission.UNAUTHORIZED, message, code="invalid_api_key")

    def headers(self) -> dict[str, str]:
        """The scheme that is asked for."""
        return super().headers() | {"www-authenticate": "Bearer"}


class NoRoute(RouterError):
    """No such model, or no such path."""

    kind = "invalid_request_error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(Admission.UNKNOWN_MODEL, message, code=code)


class NotTaken(RouterError):
    """Nothing was processed; the client may simply ask again after Retry-After."""

    kind = "overloaded_error"

    def headers(self) -> dict[str, str]:
        """Retry-After, and the proof that asking again is safe."""
        again = {"retry-after": str(self.retry_after_s), "x-bireme-unprocessed": "1"}
        return super().headers() | again


class DeadlinePassed(RouterError):
    """The request's time is over; part of it may have been computed."""

    kind = "timeout_error"

    def __init__(self, message: str) -> None:
        super().__init__(Admission.DEADLINE, message)


class GroupsLost(RouterError):
    """The request was sent and lost too often, or can't be continued."""

    def __init__(self, message: str) -> None:
        super().__init__(Admission.GROUP_LOST, message)


class WorkerRefused(RouterError):
    """A worker's answer that is not 200, for the client as it is."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        super().__init__(status, f"the worker answered {status}")
        self._body = body
        self._headers = headers

    def body(self) -> bytes:
        """The worker's bytes."""
        return self._body

    def headers(self) -> dict[str, str]:
        """The worker's end-to-end headers."""
        return self._headers


class _Failure(msgspec.Struct):
    code: int | str | None = None
    message: str = "the engine reported an error"


class _FailureEvent(msgspec.Struct):
    error: _Failure


class EngineFailed(RouterError):
    """The engine's own error event; ``event`` is relayed to a stream that has begun."""

    def __init__(self, payload: bytes) -> None:
        try:
            failure = msgspec.json.decode(payload, type=_FailureEvent).error
        except msgspec.MsgspecError:
            failure = _Failure()
        known = isinstance(failure.code, int) and 400 <= failure.code < 600
        super().__init__(int(failure.code or 500) if known else 500, failure.message)
        self._payload = payload

    def body(self) -> bytes:
        """The engine's error object, untouched."""
        return self._payload
