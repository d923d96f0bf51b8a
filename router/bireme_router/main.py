"""`python -m bireme_router.main`: command line, signals and exit codes of the router."""

import asyncio
import errno
import gc
import logging
import signal
import sys
from collections.abc import Sequence

import uvloop

from bireme.names import Exit
from bireme.process import die_with_parent
from bireme_router.app import Router, running
from bireme_router.edge.errors import UnusableFile
from bireme_router.processes import run_processes
from bireme_router.settings import Settings, read_settings

log = logging.getLogger("bireme_router")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit code is one of ``names.Exit``."""
    die_with_parent()
    given = sys.argv[1:] if arguments is None else list(arguments)
    settings = read_settings(given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, given))
    except UnusableFile as error:
        print(f"bireme-router: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    except Exception:
        log.exception("the router ends: this is a fault in it, please report it")
        return Exit.INTERNAL


async def _serve(settings: Settings, arguments: Sequence[str]) -> int:
    if settings.processes > 1 and settings.share is None:
        try:
            return await run_processes(settings, arguments)
        except OSError as error:
            print(_cannot_listen(settings, error), file=sys.stderr)
            return Exit.BAD_CONFIGURATION
    signals = _Signals()  # before anybody is told the address: who is told may send one
    async with running(settings) as router:
        try:
            address = await router.listen()
        except OSError as error:
            print(_cannot_listen(settings, error), file=sys.stderr)
            return Exit.BAD_CONFIGURATION
        print(f"bireme-router listens on {address}", flush=True)
        quiet_collector()
        await _until_stopped(router, signals)
    return Exit.DRAINED


def quiet_collector() -> None:
    """Imports never become garbage and a relayed token leaves none: look rarely, and only at what is new."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Signals:
    """The first SIGTERM or SIGINT asks to ``stop``, the second to do so ``now``."""

    def __init__(self) -> None:
        self.stop, self.now = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        (self.now if self.stop.is_set() else self.stop).set()


async def _until_stopped(router: Router, signals: _Signals) -> None:
    keeping = asyncio.create_task(router.follow())
    try:
        await _first(keeping, asyncio.create_task(signals.stop.wait()))
        await _first(keeping, asyncio.create_task(router.drain()), asyncio.create_task(signals.now.wait()))
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def _first(*tasks: "asyncio.Task[None] | asyncio.Task[bool]") -> None:
    """Wait for the first to end, and raise its error if it has one."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _cannot_listen(settings: Settings, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"bireme-router: {where} is in use: stop what listens there, or choose another with --port"
    return f"bireme-router: can't listen on {where}: {error.strerror or error}"


if __name__ == "__main__":
    sys.exit(main())
