"""What a client is told when it gets no answer: OpenAI's error object, and whether it may simply send again.

ApiError
├── InvalidRequest    400  the request can't be right; names the field and the remedy
├── Unauthorized      401  the group token is missing or wrong
├── UnknownModel      404  no such model
├── UnknownRoute      404  no such route
├── WrongMethod       405  the route has another method
├── Conflict          409  a stream can't be resumed here
├── BodyTooLarge      413
├── QueueFull         429  send again after Retry-After
├── NotServing        503  send again after Retry-After
│   └── HandedOver    503  the engine gave the request back: whoever has the journal can resume it
└── EngineFailed      500  the engine could not compute it

All but EngineFailed are raised before anything reached the client, so the request is provably unprocessed then.
"""

import math
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

import msgspec
from aiohttp import web

from bireme.names import Admission, Header
from bireme_worker.http.unbuilt import instead_of


class ApiError(Exception):
    """Base: knows its HTTP status, OpenAI's words for it, and the field that it is about."""

    status: ClassVar[int]
    kind: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None
    unprocessed: ClassVar[bool] = True

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """OpenAI's error object as JSON."""
        return msgspec.json.encode(
            {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}
        )

    def headers(self) -> dict[str, str]:
        """Our headers on a refusal."""
        headers: dict[str, str] = {Header.UNPROCESSED: "1"} if self.unprocessed else {}
        if self.status in (Admission.QUEUE_FULL, Admission.NOT_SERVING):
            headers["Retry-After"] = str(max(math.ceil(self.retry_after_s), 1))
        return headers


class InvalidRequest(ApiError):
    """The request can't be right."""

    status = Admission.NEVER_FITS


class Unauthorized(ApiError):
    """The group token is missing or wrong."""

    status = Admission.UNAUTHORIZED
    code = "invalid_api_key"


class UnknownModel(ApiError):
    """No such model."""

    status = Admission.UNKNOWN_MODEL
    code = "model_not_found"


class UnknownRoute(ApiError):
    """No such route."""

    status = Admission.UNKNOWN_MODEL
    code = "unknown_url"


class WrongMethod(ApiError):
    """The route has another method."""

    status = 405
    code = "method_not_supported"


class Conflict(ApiError):
    """The group can't resume this stream."""

    status = Admission.CONFLICT
    kind = "conflict_error"
    code = "model_revision_mismatch"


class BodyTooLarge(ApiError):
    """The body is over the limit."""

    status = Admission.BODY_TOO_LARGE
    code = "body_too_large"


class QueueFull(ApiError):
    """The queue is full."""

    status = Admission.QUEUE_FULL
    kind = "rate_limit_error"
    code = "queue_full"


class NotServing(ApiError):
    """The group takes no requests now."""

    status = Admission.NOT_SERVING
    kind = "service_unavailable_error"
    code = "not_serving"


class HandedOver(NotServing):
    """The engine gave the request back before it ended."""

    code = "handover"


class EngineFailed(ApiError):
    """The engine could not compute the request."""

    status = 500
    kind = "server_error"
    code = "engine_error"
    unprocessed = False


_BY_CODE: Final[dict[int, type[ApiError]]] = {
    kind.status: kind for kind in (InvalidRequest, UnknownModel, Conflict, BodyTooLarge, QueueFull, NotServing)
}


def refusal(code: int, message: str, retry_after_s: float) -> ApiError:
    """The error for a code of ``names.Admission`` that the coordinator chose."""
    return _BY_CODE.get(code, NotServing)(message, retry_after_s=retry_after_s)


def error_event(error: ApiError) -> bytes:
    """The last event of a stream that breaks: no finish reason and no [DONE] follow."""
    return b"data: " + error.body() + b"\n\n"


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal, aiohttp's own too, with OpenAI's error object."""
    try:
        return await handler(request)
    except ApiError as error:
        return _response(error)
    except web.HTTPRequestEntityTooLarge as error:
        return _response(BodyTooLarge(f"the body is over the limit: {error.text}"))
    except web.HTTPNotFound:
        way = instead_of(request.path)
        text = f"{request.path} is not offered: {way}" if way else f"there is no route {request.method} {request.path}"
        return _response(UnknownRoute(text))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _response(WrongMethod(f"{request.path} has no method {request.method}: use {allowed}"))


def _response(error: ApiError) -> web.Response:
    return web.Response(
        status=error.status, body=error.body(), headers=error.headers(), content_type="application/json"
    )
