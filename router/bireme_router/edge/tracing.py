"""OpenTelemetry spans: one per request, one per attempt at a group. The API only, and only where it is installed.

Whoever wants spans runs the router under an SDK (`opentelemetry-instrument bireme-router …`). Without the package
nothing is made and nothing is paid. The client's own trace is continued, and the worker's becomes a part of it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from bireme_router.job import Job

if TYPE_CHECKING:
    from opentelemetry.trace import Span

try:
    from opentelemetry import propagate, trace
except ImportError:
    _TRACER = None
else:
    _TRACER = trace.get_tracer("bireme_router")

_ERRORS_FROM: Final = 500


def request_span(headers: Mapping[str, str], path: str) -> "Span | None":
    """Begin the span of a request; None where nobody would see it."""
    if _TRACER is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    kind = trace.SpanKind.SERVER
    return _TRACER.start_span(f"POST {path}", context=propagate.extract(headers), kind=kind)


def end_request(span: "Span | None", status: int) -> None:
    """The request is answered."""
    if span is not None:
        span.set_attribute("http.response.status_code", status)
        if status >= _ERRORS_FROM:
            span.set_status(trace.StatusCode.ERROR)
        span.end()


def describe(span: "Span | None", job: Job) -> None:
    """What is asked."""
    if span is not None:
        names = {"gen_ai.request.model": str(job.fields["model"]), "bireme.request_id": job.request_id}
        span.set_attributes({**names, "bireme.stream": job.wants_stream, "bireme.priority": job.priority.name.lower()})


def attempt_span(request: "Span | None", group: str, pod: str, number: int) -> "tuple[Span | None, dict[str, str]]":
    """Begin the span of one attempt; also the headers by which the worker continues the trace."""
    if _TRACER is None or request is None:
        return None, {}
    context = trace.set_span_in_context(request)
    span = _TRACER.start_span("attempt", context=context, kind=trace.SpanKind.CLIENT)
    span.set_attributes({"bireme.group": group, "bireme.pod": pod, "bireme.attempt": number})
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(span))
    return span, headers


def end_attempt(span: "Span | None", outcome: str, tokens: int) -> None:
    """The attempt is over; ``outcome`` is the name of how."""
    if span is not None:
        span.set_attributes({"bireme.outcome": outcome, "bireme.tokens": tokens})
        span.end()
