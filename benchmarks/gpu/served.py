"""A deployment as users have it (`bireme up`: operator, router, workers with spare ranks) on this machine's GPUs.

What clients see is measured through the router by streams that ask for a number of tokens and count them.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.gpu.workloads import Request
from bireme.names import Env
from tests.support.deployment import Deployment, running
from tests.support.ports import free_port

MODEL = "random"
LIMIT_S = 240.0
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_TAIL = 4096
_FILE = """\
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata:
  name: gpu
spec:
  replicas: 1
  model:
    name: {model}
    source: {{path: /models/{directory}}}
    revision: "{directory}"
  parallelism: {{tensor: {tensor}, pipeline: {pipeline}}}
  engine:
    maxModelLength: 8192
    maxRunningRequests: 256
    maxBatchedTokens: 8192
    prefixCaching: Disabled
    kvCache: {{{kv_cache}}}
  recovery:
    restartBudget: {{limit: 1000, windowSeconds: 60}}
    backoff: {{initialSeconds: 1, maxSeconds: 2}}
  router: {{port: 8080}}
"""


@contextmanager
def deployed(
    checkpoint: Path,
    tensor: int,
    pipeline: int,
    device: str,
    environment: Mapping[str, str] | None = None,
    kv_bytes: int = 0,
) -> Iterator[Deployment]:
    """`bireme up` was just started; nobody has waited for it. ``kv_bytes`` of each rank, 0: the device's default."""
    kv_cache = f"bytes: {kv_bytes}" if kv_bytes else ""
    extra = {Env.DEVICE: device, **(environment or {})}
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        with tempfile.TemporaryDirectory(prefix="bireme-") as path:
            file = Path(path) / "gpu.yaml"
            places = {"directory": checkpoint.name, "tensor": tensor, "pipeline": pipeline}
            file.write_text(_FILE.format(model=MODEL, kv_cache=kv_cache, **places))
            with running(file, Path(path), free_port(), {"/models": checkpoint.parent}) as deployment:
                yield deployment
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@dataclass
class Answer:
    """A stream: when its parts came, how many tokens it had, and what went wrong."""

    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


async def ask(session: aiohttp.ClientSession, url: str, request: Request, answer: Answer) -> Answer:
    """Stream one completion of given ids to its length."""
    prompt, wanted = request
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": wanted, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    tail = b""
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {(await response.text())[:200]}"
                return answer
            async for part in response.content.iter_any():
                answer.arrivals.append(time.monotonic())
                tail = (tail + part)[-_TAIL:]
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = repr(error)
        return answer
    found = _USAGE.findall(tail)
    answer.tokens = int(found[-1]) if found else 0
    if answer.tokens != wanted or b"[DONE]" not in tail:
        answer.error = f"{answer.tokens} tokens of {wanted}: {tail[-200:]!r}"
    return answer


def session() -> aiohttp.ClientSession:
    """Without limits of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20
    )


async def throughput(url: str, requests: Sequence[Request], clients: int) -> tuple[float, list[str]]:
    """Output tokens per second with so many streams at once, and what failed."""
    waiting, answers = list(reversed(requests)), []

    async def client(http: aiohttp.ClientSession) -> None:
        while waiting:
            answers.append(await ask(http, url, waiting.pop(), Answer()))

    async with session() as http:
        begin = time.monotonic()
        await asyncio.gather(*(client(http) for _ in range(clients)))
        seconds = time.monotonic() - begin
    return sum(answer.tokens for answer in answers) / seconds, [one.error for one in answers if one.error]


async def first_token(deployment: Deployment, patience_s: float = LIMIT_S) -> float:
    """Ask until one token comes, or `bireme up` has ended; the time on this process's monotonic clock."""
    end = time.monotonic() + patience_s
    async with session() as http:
        while True:
            answer = await ask(http, deployment.url, ([17, 18, 19], 1), Answer())
            if not answer.error:
                return answer.arrivals[0]
            assert deployment.process.poll() is None, f"bireme up ended: {deployment.log.read_text()[-600:]}"
            assert time.monotonic() < end, f"nothing serves after {patience_s:.0f} s: {answer.error}"
            await asyncio.sleep(0.02)


class Streams:
    """So many streams without an end; a stream that is done is asked anew."""

    def __init__(self, url: str, count: int, request: Request) -> None:
        self.answers: list[Answer] = []
        self._url, self._request = url, request
        self._tasks = [asyncio.create_task(self._repeat()) for _ in range(count)]

    async def _repeat(self) -> None:
        async with session() as http:
            while True:
                self.answers.append(Answer())
                if (await ask(http, self._url, self._request, self.answers[-1])).error:
                    await asyncio.sleep(0.1)

    @property
    def arrived(self) -> int:
        """Parts of all streams."""
        return sum(len(answer.arrivals) for answer in self.answers)

    @property
    def failed(self) -> list[str]:
        """What went wrong."""
        return [answer.error for answer in self.answers if answer.error]

    async def flowing(self, parts: int, patience_s: float = LIMIT_S) -> None:
        """Wait until so many more parts came."""
        wanted, end = self.arrived + parts, time.monotonic() + patience_s
        while self.arrived < wanted:
            assert time.monotonic() < end, f"no tokens in {patience_s:.0f} s: {self.failed[-1:]}"
            await asyncio.sleep(0.02)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a part of any stream that touches the window."""
        arrivals = sorted(at for answer in self.answers for at in answer.arrivals if begin - 1 <= at <= end + 1)
        return max((after - at for at, after in pairwise(arrivals)), default=end - begin)

    async def stop(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def ranks(deployment: Deployment) -> dict[tuple[int, int], tuple[int, int]]:
    """(stage, rank) → (pid, how often it loaded)."""
    document = deployment.state(0)
    return {(one.stage, rank.rank): (rank.pid, rank.loads) for one in document.stages for rank in one.ranks}


def told(deployment: Deployment) -> str:
    """What the operator says, for a failure's message."""
    return json.dumps(deployment.groups())[-600:]
