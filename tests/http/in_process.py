"""The HTTP application, a real coordinator core and a real runner of a tiny random model, all in the test's own loop.

A plan is computed as soon as it is sent, between two events of the loop, so a test sees the whole path of a request
without another process.
"""

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from bireme.wire.plan import Commit, Plan
from bireme_worker.coordinator.core import Core
from bireme_worker.coordinator.messages import Begin, Serve
from bireme_worker.coordinator.request_port import RequestPort
from bireme_worker.coordinator.standing import Weights
from bireme_worker.engine.admission import Capacity
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.http.app import make_app
from bireme_worker.http.coordinator_link import CoordinatorLink
from bireme_worker.http.service import Service
from bireme_worker.identity import Identity
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.loading import load_runner
from bireme_worker.rank.runner import Runner
from bireme_worker.text.tokenizer import TextModel
from tests.faults.tiny import make_tiny
from tests.support.rank_threads import identity

CONTEXT = 512
HERMES = (
    '{% if tools %}Tools: {{ tools | tojson }} Answer with <tool_call>{"name": …}</tool_call>.\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def make_checkpoint(directory: Path, template: str = HERMES, **overrides: int) -> Path:
    """A tiny random model whose chat template knows tools."""
    make_tiny(directory, **overrides)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return directory


class InlineRanks:
    """One rank; ``plans`` keeps what it was asked."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.core: Core | None = None
        self.plans: list[Plan] = []

    def open(self, epoch: int) -> None:
        self._gate = EpochGate(epoch)
        self._runner.begin(SoloCommunicator(self._gate))
        asyncio.get_running_loop().call_soon(self._attached)

    def close(self) -> None:
        self._runner.end()

    def send(self, plan: Plan | Commit) -> None:
        assert isinstance(plan, Plan)
        self.plans.append(plan)
        result = self._runner.collect(self._runner.launch(plan))
        assert self.core is not None
        asyncio.get_running_loop().call_soon(self.core.take_result, result)

    def _attached(self) -> None:
        assert self.core is not None
        self.core.ranks_attached()
        self.core.obey(Serve(1))


@contextlib.asynccontextmanager
async def http_app(pod: Identity, requests: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """The application in front of whoever listens at ``requests``."""
    link = CoordinatorLink(requests, pod.token)
    app: web.Application = make_app(Service(pod, TextModel.load(Path(pod.checkpoint.source)), link, ""))
    server = TestServer(app, host="127.0.0.1")
    async with server, aiohttp.ClientSession(str(server.make_url("/"))) as client:
        async with asyncio.timeout(60):
            while link.serving is None or not link.serving.serving:
                await asyncio.sleep(0.005)
        yield client


@contextlib.asynccontextmanager
async def whole_group(
    source: Path, folder: Path, *, name: str = "tiny", budget: int = 64, kv_blocks: int = 128, slots: int = 8
) -> AsyncIterator[tuple[aiohttp.ClientSession, InlineRanks]]:
    """A group that serves ``source``."""
    changes = {"max_batched_tokens": budget, "max_running_requests": slots, "max_model_length": CONTEXT}
    pod = replace(identity(source, **changes, kv_bytes=1 << 24), state_dir=folder, model_name=name)
    ranks = InlineRanks(load_runner(pod, 0, pod.checkpoint, Progress()))
    core = Core(
        scheduler=Scheduler(SchedulerConfig(slots, budget, 1, 2)),
        capacity=Capacity(CONTEXT, TextModel.load(source).config.vocab_size, slots, 64),
        weights=Weights("1"),
        ranks=ranks,
        tell=lambda _: None,
        clock=time.monotonic,
        soon=asyncio.get_running_loop().call_soon,
    )
    ranks.core = core
    server = await RequestPort(pod.token, core).listen(pod.requests_socket)
    try:
        core.obey(Begin(epoch=1, kv_blocks=kv_blocks, model_revision="1", generation=0, source=str(source)))
        async with http_app(pod, pod.requests_socket) as client:
            yield client, ranks
    finally:
        server.close()


async def post(client: aiohttp.ClientSession, route: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and the parsed answer of a request without stream."""
    async with client.post(route, json={"model": "tiny", **body}) as response:
        return response.status, await response.json()


def remove(folder: Path) -> None:
    """Delete a folder that a session made."""
    shutil.rmtree(folder, ignore_errors=True)
