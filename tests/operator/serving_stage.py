"""A stage that answers requests as the router expects it, for tests in which no model is the point.

ANSWER in the environment says how: `serve` (default), or `fail` with HTTP 500. Run as `python -m`.
"""

import asyncio
import os
import signal
from collections import deque
from pathlib import Path

from aiohttp import web

from bireme.process import die_with_parent
from tests.support import stub_leader
from tests.support.stub_leader import Behaviour, Refuse, Serve, StubLeader

BEHAVIOURS: dict[str, Behaviour] = {"serve": Serve(), "fail": Refuse(500)}


class Always(deque[Behaviour]):
    """A script of one behaviour that never ends."""

    def popleft(self) -> Behaviour:
        return self[0]


class ServingStage(StubLeader):
    """Speaks for its group as the environment has it."""

    def __init__(self) -> None:
        super().__init__(script=Always([BEHAVIOURS[os.environ.get("ANSWER", "serve")]]))
        self.group = os.environ["BIREME_GROUP_UID"]
        self.incarnation = int(os.environ["BIREME_INCARNATION"])
        self.state |= {
            "epoch": (self.incarnation << 20) + 1,
            "revision": os.environ["BIREME_REVISION"],
            "model_revision": os.environ["BIREME_MODEL_REVISION"],
        }

    async def run(self) -> None:
        host = os.environ["BIREME_POD_IP"]
        admin = web.Application()
        admin.router.add_get("/watch", self._watch)
        admin.router.add_get("/{probe:livez|readyz}", self._probe)
        admin.router.add_post("/drain", self._drain)
        self._host = host
        await self._serve(admin, 8001)
        app = web.Application()
        app.router.add_post("/v1/{rest:.+}", self._answer)
        await self._serve(app, 8000)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()

    async def _probe(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _drain(self, _: web.Request) -> web.Response:
        await self.change(state="Draining", draining=True)
        return web.Response()


def main() -> None:
    die_with_parent()
    stub_leader.TOKEN = Path(os.environ["BIREME_TOKEN_FILE"]).read_text()
    asyncio.run(ServingStage().run())


if __name__ == "__main__":
    main()
