"""What the router costs per relayed event, beside a bare aiohttp relay, in one run on one machine.

An upstream process sends paced event streams (with journal lines to the router, without to the bare relay, as real
workers do); this process reads them all. The figure is the relay's own CPU time per event, read from the kernel, so a
busy machine changes it little. Rounds alternate between the two; the median of each counts. Last line: JSON.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from bireme.process import child_environment, die_with_parent
from bireme.wire.journal import Emitted, Opened, journal_line
from bireme.wire.requests import Limits
from bireme.wire.routes import Route, Routes, write_routes
from bireme.wire.state import ReloadState, StateDocument

CHAT: Final = "/v1/chat/completions"
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END: Final = b"data: [DONE]\n\n"


def event(content: str, finish: str | None = None) -> bytes:
    """One chunk as a worker writes it."""
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    envelope = {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return b"data: " + msgspec.json.encode({**envelope, "system_fingerprint": "r", "choices": [choice]}) + b"\n\n"


def chunked(data: bytes) -> bytes:
    """One chunk of HTTP/1.1's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """Answers every request on a connection with the same paced stream."""

    def __init__(self, events: int, interval_s: float) -> None:
        self._events = events
        self._interval = interval_s
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not found or len(body) < int(length[0].split(b":")[1]):
            return
        self._buffer = b""
        self._task = asyncio.ensure_future(self._stream(b"x-bireme-journal" in head.lower()))

    async def _stream(self, journal: bool) -> None:
        transport: Any = self._transport
        token = (journal_line(Emitted(0, [12345])) if journal else b"") + event(" token")
        opened = journal_line(Opened(1, list(range(100)), "r")) if journal else b""
        finish = (journal_line(Emitted(0, [2], "stop")) if journal else b"") + event("", "stop")
        transport.write(HEAD + chunked(opened + event("")))
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(self._events):
            due += self._interval
            await asyncio.sleep(max(due - loop.time(), 0))
            transport.write(chunked(token))
        transport.write(chunked(finish + END) + b"0\r\n\r\n")


async def serve_upstream(events: int, interval_s: float) -> None:
    """The OpenAI port and the admin port of one group, printed as JSON."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(events, interval_s), "127.0.0.1", 0, backlog=4096)
    app = web.Application()
    app.router.add_get("/watch", watch)
    ports = {"http": f"http://{address(server.sockets[0])}", "admin": f"http://{await site(app)}"}
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


async def watch(request: web.Request) -> web.StreamResponse:
    """The state of a group that always serves."""
    response = web.StreamResponse()
    await response.prepare(request)
    zeros = {int: 0, float: 0.0, str: "", bool: False}
    document = {field.name: zeros.get(field.type) for field in msgspec.structs.fields(StateDocument)}
    known = {"group": "g", "incarnation": 1, "epoch": 1, "state": "Serving", "model_revision": "r"}
    rest = {"reload": ReloadState(), "limits": Limits(0, 0, 0), "stages": ()}
    while True:
        await response.write(msgspec.json.encode({**document, **rest, **known}) + b"\n")
        await asyncio.sleep(0.5)


async def serve_bare(upstream: str) -> None:
    """The relay to compare with: aiohttp to aiohttp, every read written on."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with session.post(upstream + CHAT, data=body) as answer:
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                while data := await answer.content.readany():
                    await response.write(data)
                await response.write_eof()
                return response

        app = web.Application()
        app.router.add_post(CHAT, relay)
        print(f"http://{await site(app)}", flush=True)
        await asyncio.Event().wait()


async def site(app: web.Application) -> str:
    """Serve on a free port."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    return "{}:{}".format(*runner.addresses[0][:2])


def address(socket: Any) -> str:
    """Host and port."""
    return "{}:{}".format(*socket.getsockname()[:2])


async def read_stream(url: str) -> int:
    """Ask for one stream and count its events."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
    writer.write(b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    events, tail = 0, b""
    while True:
        data = await reader.read(65536)
        if not data:
            raise ConnectionError(f"the stream ended after {events} events")
        # A marker may lie across two reads; the kept tail is too short to count one twice.
        events += (tail + data).count(b"\ndata: {") + (tail + data).count(b"\ndata: [")
        done = b"data: [DONE]" in tail + data
        tail = (tail + data)[-7:]
        if done:
            writer.close()
            return events


def cpu_s(pid: int) -> float:
    """Time that the process was on a processor."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def measure(url: str, pid: int, streams: int) -> tuple[float, float]:
    """CPU microseconds per event, and events per second of wall time."""
    loop = asyncio.get_running_loop()
    before, began = cpu_s(pid), loop.time()
    counts = await asyncio.gather(*(read_stream(url) for _ in range(streams)))
    events = sum(counts)
    return (cpu_s(pid) - before) / events * 1e6, events / (loop.time() - began)


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A child process and its first line."""
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=child_environment({}))
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


async def compare(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Run the rounds."""
    me = (sys.executable, __file__)
    load = ("--events", str(options.events), "--interval", str(options.interval))
    upstream, line = start(*me, "--role", "upstream", *load)
    ports = json.loads(line)
    (directory / "token").write_text("ab" * 32)
    route = Route("g", 0, "p", 1, ports["http"], ports["admin"], str(directory / "token"))
    (directory / "routes.json").write_bytes(write_routes(Routes(1, ("m",), (route,))))
    bare, bare_url = start(*me, "--role", "bare", "--upstream", ports["http"])
    command = ("-m", "bireme_router.main", "--routes", str(directory / "routes.json"), "--port", "0")
    router, line = start(sys.executable, *command)
    router_url = line.split()[-1]
    children = {"bare": (bare_url, bare.pid), "router": (router_url, router.pid)}
    try:
        figures: dict[str, list[float]] = {name: [] for name in children}
        for name, (url, pid) in children.items():
            await measure(url, pid, 20)
            print(f"{name} is warm", flush=True)
        for number in range(options.rounds):
            for name, (url, pid) in children.items():
                cost, rate = await measure(url, pid, options.streams)
                figures[name].append(cost)
                print(f"round {number + 1} {name}: {cost:.1f} µs of CPU per event at {rate:,.0f} events/s", flush=True)
    finally:
        for child in (router, bare, upstream):
            child.terminate()
            child.wait()
    bare_us, router_us = statistics.median(figures["bare"]), statistics.median(figures["router"])
    return {
        "relay_ratio": round(bare_us / router_us, 3),
        "router_events_per_cpu_s": round(1e6 / router_us),
        "bare_events_per_cpu_s": round(1e6 / bare_us),
        "router_us_per_event": round(router_us, 2),
        "bare_us_per_event": round(bare_us, 2),
    }


def main() -> None:
    """Parse and run."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100, help="streams at once (%(default)s)")
    parser.add_argument("--events", type=int, default=200, help="events per stream (%(default)s)")
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between events (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each relay (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--role", choices=("upstream", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--upstream", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.streams, options.events, options.rounds = 50, 100, 2
    if options.role == "upstream":
        uvloop.run(serve_upstream(options.events, options.interval))
    elif options.role == "bare":
        uvloop.run(serve_bare(options.upstream))
    else:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(uvloop.run(compare(options, Path(directory)))))


if __name__ == "__main__":
    main()
