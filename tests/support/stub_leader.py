"""A leader that misbehaves for real, over sockets: OpenAI routes with the journal, and an admin port with `/watch`.

Each request takes the next behaviour of ``script``, or ``Serve()`` when it is empty; leaders may share one script.
Nothing of a worker is inside.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from bireme.names import Header
from bireme.wire.journal import Handover, journal_line
from bireme.wire.requests import Limits
from bireme.wire.state import ReloadState, StateDocument
from bireme_operator.local.addresses import draw_address
from tests.support.stub_answers import REVISION, Answer

TOKEN = "ab" * 32


@dataclass(frozen=True)
class Serve:
    """The whole answer; ``pause_s`` before each line, ``head_after_s`` and then ``gate`` before the status line."""

    pause_s: float = 0.0
    head_after_s: float = 0.0
    gate: asyncio.Event | None = None


@dataclass(frozen=True)
class Trickle:
    """The answer's first lines and then comments without end, ``pause_s`` apart: it goes on until the client leaves."""

    lines: int
    pause_s: float


@dataclass(frozen=True)
class Die:
    """Reset the connection after so many lines; ``clean`` closes it as if the answer were complete."""

    lines: int
    clean: bool = False


@dataclass(frozen=True)
class HandOver:
    """End with a handover after so many lines."""

    lines: int


@dataclass(frozen=True)
class Silent:
    """Say nothing more after so many lines; ``headers`` False: not even the status line."""

    lines: int = 0
    headers: bool = True


@dataclass(frozen=True)
class Refuse:
    """Answer with this status."""

    status: int
    unprocessed: bool = False
    retry_after: str | None = None


@dataclass(frozen=True)
class ResetAfterBody:
    """Read the request, then reset the connection without a byte of answer."""


@dataclass(frozen=True)
class Fail:
    """An error event after so many lines, and the end."""

    lines: int


@dataclass(frozen=True)
class Raw:
    """These bytes as the event stream, then the end."""

    content: bytes
    step: int = 0


Behaviour = Serve | Trickle | Die | HandOver | Silent | Refuse | ResetAfterBody | Fail | Raw


@dataclass
class Received:
    """One request as it arrived."""

    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class StubLeader:
    """One group's leader."""

    def __init__(self, index: int = 0, pod: str | None = None, script: "deque[Behaviour] | None" = None) -> None:
        self.index = index
        self.group = f"group-{index}"
        self.pod = pod or f"pod-{index}-1"
        self.incarnation = 1
        self.script: deque[Behaviour] = deque() if script is None else script
        self.received: list[Received] = []
        self.open = 0
        self.left = asyncio.Queue[None]()
        """One entry for each client that was seen to leave."""
        self.state: dict[str, Any] = {"state": "Serving", "epoch": 1, "model_revision": REVISION}
        self.limits = Limits(4096, 256, 256)
        self.watch_speaks = True
        self.cached_tokens: int | None = None
        """What the journal says of the prompt."""
        self._seq = 0
        self._host = "127.0.0.1"
        self._changed = asyncio.Condition()
        self._runners: list[web.AppRunner] = []
        self._watchers: set[asyncio.Transport] = set()
        self.http = ""
        self.admin = ""

    async def start(self, http_port: int = 0, admin_port: int = 0, host: str | None = None) -> "StubLeader":
        """On an address of its own where none is given: on 127.0.0.1 a port left for a moment may become a client's."""
        self._host = host or draw_address()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/{rest:.+}", self._answer)
        admin = web.Application()
        admin.router.add_get("/watch", self._watch)
        self.http = await self._serve(app, http_port)
        self.admin = await self._serve(admin, admin_port)
        return self

    async def stop(self) -> None:
        """Gone: ports closed, connections reset."""
        self.say_goodbye()
        await self.stop_http()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def stop_http(self) -> None:
        """Only the OpenAI port is gone; the watch goes on."""
        if self._runners:
            await self._runners.pop(0).cleanup()

    async def start_http_again(self) -> None:
        """On the same port."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/{rest:.+}", self._answer)
        self.http = await self._serve(app, int(self.http.rsplit(":", 1)[1]))
        self._runners.insert(0, self._runners.pop())

    def say_goodbye(self) -> None:
        """Reset every watch connection."""
        for transport in list(self._watchers):
            transport.abort()

    async def change(self, **state: Any) -> None:
        """Another state, told to watchers at once."""
        self.state |= state
        async with self._changed:
            self._changed.notify_all()

    def document(self) -> StateDocument:
        self._seq += 1
        values: dict[str, Any] = {
            "v": 1, "seq": self._seq, "group": self.group, "stage": 0, "incarnation": self.incarnation, "boot": "b",
            "reason": "None", "message": "", "retry_after_s": 0.0, "revision": "r", "generation": 0,
            "reload": ReloadState(), "running": self.open, "waiting": 0, "queued_prefill_tokens": 0,
            "kv_blocks_used": 0, "kv_blocks": 100, "block_size": 16, "step": 0, "step_age_s": 0.0,
            "draining": False, "limits": self.limits, "stages": (),
        }  # fmt: skip
        return StateDocument(**{**values, **self.state})

    async def _serve(self, app: web.Application, port: int) -> str:
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, self._host, port, reuse_address=True).start()
        self._runners.append(runner)
        return f"http://{self._host}:{runner.addresses[0][1]}"

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get(Header.TOKEN) != f"Bearer {TOKEN}":
            return web.Response(status=401)
        interval = float(request.query["interval"])
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        self._watchers.add(request.transport)
        try:
            while True:
                if self.watch_speaks:
                    await response.write(msgspec.json.encode(self.document()) + b"\n")
                async with self._changed:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), interval / 20)
        finally:
            self._watchers.discard(request.transport)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers.get(Header.TOKEN) == f"Bearer {TOKEN}"
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path, await request.read(), headers))
        behaviour = self.script.popleft() if self.script else Serve()
        self.open += 1
        try:
            return await self._behave(request, behaviour, self.received[-1])
        except (asyncio.CancelledError, ConnectionError):
            self.left.put_nowait(None)
            raise
        finally:
            self.open -= 1

    async def _behave(self, request: web.Request, behaviour: Behaviour, received: Received) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if isinstance(behaviour, Refuse):
            return _refusal(behaviour)
        if isinstance(behaviour, ResetAfterBody):
            transport.abort()
            return web.Response()
        if isinstance(behaviour, Silent) and not behaviour.headers:
            await asyncio.Event().wait()
        if isinstance(behaviour, Serve):
            await _before_the_head(behaviour)
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            Header.MODEL_REVISION: self.state["model_revision"],
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        answer = Answer(received.path, received.json, self.state["model_revision"], self.cached_tokens)
        match behaviour:
            case Raw(content, step):
                for at in range(0, len(content), step or len(content)):
                    await response.write(content[at : at + (step or len(content))])
                    await asyncio.sleep(0)
            case Trickle(lines, pause_s):
                await response.write(b"".join(answer.lines()[:lines]))
                while True:
                    await asyncio.sleep(pause_s)
                    await response.write(b": goes on\n\n")
            case Serve(pause_s):
                for line in answer.lines():
                    if pause_s:
                        await asyncio.sleep(pause_s)
                    await response.write(line)
            case Die(lines) | HandOver(lines) | Silent(lines) | Fail(lines):
                await response.write(b"".join(answer.lines()[:lines]))
                await self._end(response, transport, behaviour)
        await response.write_eof()
        return response

    async def _end(self, response: web.StreamResponse, transport: asyncio.Transport, behaviour: Behaviour) -> None:
        match behaviour:
            case Die(_, clean=False):
                await asyncio.sleep(0.01)  # what was written must leave before the reset
                transport.abort()
            case HandOver():
                await response.write(journal_line(Handover("Draining")))
            case Silent():
                await asyncio.Event().wait()
            case Fail():
                await response.write(b'data: {"error":{"message":"logits","type":"server_error","code":500}}\n\n')


async def _before_the_head(behaviour: Serve) -> None:
    if behaviour.head_after_s:
        await asyncio.sleep(behaviour.head_after_s)
    if behaviour.gate is not None:
        await behaviour.gate.wait()


def _refusal(behaviour: Refuse) -> web.Response:
    headers = {"content-type": "application/json"}
    if behaviour.unprocessed:
        headers[Header.UNPROCESSED] = "1"
    if behaviour.retry_after is not None:
        headers["retry-after"] = behaviour.retry_after
    body = msgspec.json.encode({"error": {"message": f"stub {behaviour.status}", "type": "t", "code": None}})
    return web.Response(status=behaviour.status, body=body, headers=headers)
