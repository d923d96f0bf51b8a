"""One port for kubelets and Prometheus: `/healthz` tells that the loop turns, `/metrics` what it does.

It is served from the loop that all the work is done in, so an operator that hangs is not heard.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from bireme_operator.shell.metrics import OperatorMetrics

log = logging.getLogger(__name__)

_EXPOSITION = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}


class PortTaken(Exception):
    """The probe port can't be listened on; the message says what to do."""


@asynccontextmanager
async def serving(port: int, health: Callable[[], dict[str, Any]], metrics: OperatorMetrics) -> AsyncIterator[int]:
    """Serve for as long as the block lasts; the value is the port, which the system chooses for ``port`` 0.

    Raises:
        PortTaken: somebody else listens there.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response(health())

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers=_EXPOSITION)

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/metrics", scrape)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await _listen(runner, port)
        chosen = int(runner.addresses[0][1])
        log.info("/healthz and /metrics are served on port %d", chosen)
        yield chosen
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: int) -> None:
    try:
        await web.TCPSite(runner, "0.0.0.0", port).start()
    except OSError as error:
        raise PortTaken(f"--probe-port {port} can't be had ({error.strerror}): choose another, or 0 for any") from error
