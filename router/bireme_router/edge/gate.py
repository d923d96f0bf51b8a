"""What stands before and after every request: keys are checked first, one access line is written last.

Without `--api-keys` everybody is let in. Probes and `/metrics` are open: they tell nothing about requests.
"""

import asyncio

from aiohttp import web

from bireme.names import Header
from bireme_router.edge.access_log import AccessLog, Entry, now
from bireme_router.edge.api_keys import ApiKeys
from bireme_router.edge.errors import UnusableFile
from bireme_router.job import Job
from bireme_router.settings import Settings
from bireme_router.sink import Sink
from bireme_router.stream import StreamSink

CLIENT_LEFT = 499
_GUARDED = ("/v1/", "/admin/")


class Gate:
    """See ``let_in``, ``begin`` and ``end``."""

    def __init__(self, settings: Settings) -> None:
        """Open the files.

        Raises:
            UnusableFile: one can't be read, or can't be right.
        """
        try:
            self._keys = ApiKeys(settings.api_keys) if settings.api_keys else None
            self._log = AccessLog(settings.access_log) if settings.access_log else None
        except OSError as error:
            raise UnusableFile(f"{error.filename} can't be opened: {error.strerror}") from error

    def let_in(self, request: web.Request) -> str:
        """The name of the key that the request came with; empty where none is asked for.

        Raises:
            Unauthorized: it has no key that is known.
        """
        if self._keys is None or not request.path.startswith(_GUARDED):
            return ""
        return self._keys.name_of(request.headers.get(Header.TOKEN, ""))

    def begin(self, request: web.Request) -> "Visit | None":
        """What will become the request's access line; None while nobody wants one."""
        return Visit(request) if self._log is not None else None

    def end(self, visit: "Visit | None", status: int) -> None:
        """Write the line."""
        if visit is not None and self._log is not None:
            self._log.write(visit.entry(status))

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


class Visit:
    """One request on its way to its access line."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self.request_id = ""
        self.model = ""
        self.key = ""
        self.error = ""
        self._sink: Sink | None = None

    def asks(self, key: str, job: Job, sink: Sink) -> None:
        """The request was read and is let in."""
        self.key = key
        self.model = str(job.fields["model"])
        self._sink = sink

    def entry(self, status: int) -> Entry:
        """The line."""
        stream = self._sink if isinstance(self._sink, StreamSink) else None
        first = stream.first_at if stream is not None else None
        return Entry(
            at=now(),
            request_id=self.request_id,
            method=self._request.method,
            path=self._request.path,
            status=status,
            duration_ms=self._since_began(self._clock()),
            first_byte_ms=None if first is None else self._since_began(first),
            bytes_in=self._request.content_length or 0,
            bytes_out=stream.sent if stream is not None else 0,
            model=self.model,
            stream=stream is not None,
            key=self.key,
            client=self._request.remote or "",
            error=self.error,
        )

    def _since_began(self, moment: float) -> float:
        return round((moment - self._began) * 1e3, 3)
