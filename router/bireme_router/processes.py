"""`--processes N`: one parent, N routers on one port, which the kernel deals connections to (SO_REUSEPORT).

The parent holds the port, starts again whoever dies, passes signals on and relays nothing. Children end with it,
however it ends. A child that refuses its configuration ends all.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

from bireme.names import Exit
from bireme.process import child_environment
from bireme_router.settings import Settings

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.2


def reserve(host: str, port: int) -> socket.socket:
    """The port, held but not listened on: the kernel deals connections to listeners only.

    Raises:
        OSError: it can't be had.
    """
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, proto)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError:
        held.close()
        raise
    return held


async def run_processes(settings: Settings, arguments: Sequence[str]) -> int:
    """Run until a signal; the exit code is the first that is not 0.

    Raises:
        OSError: the port can't be had.
    """
    with contextlib.ExitStack() as kept:
        held = kept.enter_context(reserve(settings.host, settings.port))
        share = kept.enter_context(tempfile.TemporaryDirectory(prefix="bireme-router-"))
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "bireme_router.main", *arguments, f"--port={port}", f"--share={share}"]
        children = [_Child([*command, f"--index={index}"]) for index in range(settings.processes)]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _pass_on, children)
        running = [asyncio.create_task(child.run()) for child in children]
        greeting = asyncio.create_task(_greet(children))
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                _pass_on(children)
            codes = await asyncio.gather(*running)
        finally:
            greeting.cancel()
        return next((code for code in codes if code), int(Exit.DRAINED))


async def _greet(children: "Sequence[_Child]") -> None:
    """Say where they listen, once all do."""
    addresses = [await child.address for child in children]
    _say(f"bireme-router listens on {addresses[0]}")


def _pass_on(children: "Sequence[_Child]") -> None:
    for child in children:
        child.stop()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _Child:
    """One router process, started again until it is to stop."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """SIGTERM: the first lets open streams finish, a second does not."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    async def run(self) -> int:
        """The exit code of the last one."""
        while True:
            code = await self._run_once()
            if self._stopping or code == Exit.BAD_CONFIGURATION:
                return code
            log.warning("a router process ended with %d and is started again", code)
            await asyncio.sleep(_AGAIN_S)
            if self._stopping:
                return Exit.DRAINED

    async def _run_once(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, env=child_environment({})
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if line and not self.address.done():
            self.address.set_result(line.split()[-1])
        while line:
            line = (await self._process.stdout.readline()).decode().rstrip("\n")
            if line:
                _say(line)  # the access log may go to standard output
        return await self._process.wait()
