"""A real coordinator process with a test's own supervisor, ranks and HTTP processes around it, over the real wire."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as List
from pathlib import Path
from typing import Generic, TypeVar

from bireme.names import Env, Port
from bireme.process import child_environment
from bireme.wire.errors import ConnectionLost, WireError
from bireme.wire.frames import Channel, open_channel
from bireme.wire.plan import Attach, Commit, Plan, PlanKinds, Result, Sampling, plan_codec, unpack_ids
from bireme.wire.requests import Cancel, Frame, Refused, RequestKinds, Serving, Tokens, request_codec
from bireme_worker.coordinator.messages import (
    Begin,
    Begun,
    CoordinatorKinds,
    Finish,
    PlanLost,
    Serve,
    Status,
    coordinator_codec,
)
from tests.support.engine_driver import GREEDY, submit
from tests.support.model_rank import VOCABULARY, ModelRank

TOKEN = bytes(range(32))
CONTEXT = 512
BUDGET = 64
PATIENCE_S = 30.0

_addresses = itertools.count(1)
T = TypeVar("T")
M = TypeVar("M")


class Inbox(Generic[T]):
    """Everything that came over a channel, in order; ``until`` waits for a message of some kind."""

    def __init__(self, channel: Channel[T]) -> None:
        self.channel = channel
        self.messages: list[T] = []
        self.closed = False
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while True:
                message = await self.channel.receive()
                async with self._news:
                    self.messages.append(message)
                    self._news.notify_all()
        async with self._news:
            self.closed = True
            self._news.notify_all()

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]

    async def until(self, kind: type[M], holds: Callable[[M], bool] = lambda _: True, after: int = 0) -> M:
        """The first message of this kind, beyond the first ``after`` messages, for which ``holds``."""

        def found() -> M | None:
            rest = self.messages[after:]
            return next((message for message in rest if isinstance(message, kind) and holds(message)), None)

        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: found() is not None or self.closed)
        message = found()
        assert message is not None, f"closed without {kind.__name__}: {self.messages[-5:]}"
        return message

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: self.closed)

    async def stop(self) -> None:
        self.channel.abort()
        await self._task


class Rank:
    """One rank on the plan port. ``flow`` cleared: plans are received, but nothing is computed."""

    def __init__(self, channel: Channel[PlanKinds], attach: Attach, model: ModelRank, answers: bool) -> None:
        self.channel, self.attach, self.model, self.answers = channel, attach, model, answers
        self.plans: list[Plan] = []
        self.received = 0
        self.commits: list[tuple[int, int]] = []
        """Generation, and how many plans came before it."""
        self.flow = asyncio.Event()
        self.flow.set()
        self.ended = asyncio.Event()
        self._queue: asyncio.Queue[Plan | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._compute())]

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while True:
                plan = await self.channel.receive()
                if isinstance(plan, Commit):
                    self.commits.append((plan.generation, self.received))
                    continue
                assert isinstance(plan, Plan)
                self.received += 1
                self._queue.put_nowait(plan)
        self._queue.put_nowait(None)
        self.ended.set()

    async def _compute(self) -> None:
        while (plan := await self._queue.get()) is not None:
            await self.flow.wait()
            self.plans.append(plan)
            result = self.model.run(plan)
            if self.answers:
                self.channel.send(result)

    def send(self, result: Result) -> None:
        self.channel.send(result)

    async def kill(self) -> None:
        self.channel.abort()
        self.flow.set()
        await asyncio.gather(*self._tasks)


class HttpProcess:
    """The coordinator's side of one HTTP process."""

    def __init__(self, channel: Channel[RequestKinds]) -> None:
        self.inbox: Inbox[RequestKinds] = Inbox(channel)
        self._keys = itertools.count(1)

    def ask(
        self,
        prompt: List[int],
        max_tokens: int,
        sampling: Sampling = GREEDY,
        outputs: List[int] = (),
        *,
        journalled: bool = False,
    ) -> int:
        key = next(self._keys)
        self.inbox.channel.send(submit(prompt, max_tokens, sampling, outputs, journalled=journalled, key=key))
        return key

    def cancel(self, key: int) -> None:
        self.inbox.channel.send(Cancel(key))

    def tokens(self, key: int) -> list[Tokens]:
        return [tokens for frame in self.inbox.all(Frame) for tokens in frame.tokens if tokens.key == key]

    def ids(self, key: int) -> list[int]:
        return [token for tokens in self.tokens(key) for token in unpack_ids(tokens.ids)]

    async def some(self, key: int, count: int) -> None:
        """Wait for that many ids."""
        await self.inbox.until(Frame, lambda _: len(self.ids(key)) >= count)

    async def answer(self, key: int) -> tuple[list[int], str]:
        """All ids and the finish reason."""
        await self.inbox.until(Frame, lambda frame: any(t.key == key and t.finish for t in frame.tokens))
        return self.ids(key), self.tokens(key)[-1].finish

    async def refusal(self, key: int) -> Refused:
        return await self.inbox.until(Refused, lambda refused: refused.key == key)

    async def serving(self, holds: Callable[[Serving], bool]) -> Serving:
        """Wait until the newest word on serving is such."""
        await self.inbox.until(Serving, lambda _: holds(self.inbox.all(Serving)[-1]))
        return self.inbox.all(Serving)[-1]


class Group:
    """The coordinator process and its supervisor's end of the conversation."""

    def __init__(self, folder: Path, stages: int = 1, tensor: int = 1, **settings: object) -> None:
        number = next(_addresses)
        self.host = f"127.{128 + os.getpid() % 64}.{number // 250}.{number % 250 + 1}"
        self.folder, self.stages, self.tensor = folder, stages, tensor
        self.log = folder / "coordinator.log"
        self.settings: dict[str, str] = {Env[name.upper()]: str(value) for name, value in settings.items()}
        self.ranks: list[Rank] = []
        self.https: list[HttpProcess] = []
        self.supervisor: Inbox[CoordinatorKinds]

    @property
    def environment(self) -> dict[str, str]:
        (self.folder / "token").write_text(TOKEN.hex())
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(_CONFIG))
        (model / "model.safetensors").touch()
        return {
            Env.GROUP_UID: "g",
            Env.STAGE: "0",
            Env.STAGES: str(self.stages),
            Env.TENSOR: str(self.tensor),
            Env.LEADER_ADDRESS: self.host,
            Env.POD_IP: self.host,
            Env.TOKEN_FILE: str(self.folder / "token"),
            Env.STATE_DIR: str(self.folder),
            Env.MODEL_NAME: "m",
            Env.MODEL_PATH: str(model),
            Env.MODEL_REVISION: "first",
            Env.MAX_BATCHED_TOKENS: str(BUDGET),
            Env.MAX_RUNNING_REQUESTS: "8",
            **self.settings,
        }

    def spawn(self, stderr: int | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "bireme_worker.coordinator.main", "--control-fd", str(theirs.fileno())]
            process = subprocess.Popen(
                command, env=child_environment(self.environment), pass_fds=[theirs.fileno()], stderr=stderr
            )
        return process, ours

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self.process, ours = self.spawn(stderr=log.fileno())
        reader, writer = await asyncio.open_connection(sock=ours)
        self.supervisor = Inbox(Channel(reader, writer, coordinator_codec))
        await self.supervisor.until(Status)

    def order(self, message: CoordinatorKinds) -> None:
        self.supervisor.channel.send(message)

    async def status(self, holds: Callable[[Status], bool]) -> Status:
        """Wait until the newest status is such."""
        await self.supervisor.until(Status, lambda _: holds(self.supervisor.all(Status)[-1]))
        return self.supervisor.all(Status)[-1]

    async def attach(self, epoch: int, stage: int, rank: int, kv_blocks: int) -> Rank:
        channel = await open_channel(self.host, Port.PLAN, TOKEN, plan_codec, PATIENCE_S)
        attach = Attach(epoch, stage, rank)
        channel.send(attach)
        answers = (stage, rank) == (self.stages - 1, 0)
        model = ModelRank(kv_blocks, int(self.environment[Env.MAX_RUNNING_REQUESTS]), BUDGET)
        self.ranks.append(Rank(channel, attach, model, answers))
        return self.ranks[-1]

    async def form(self, epoch: int, kv_blocks: int = 64, revision: str = "first", flow: bool = True) -> list[Rank]:
        """Begin the epoch, attach all its ranks, let it serve; returns its ranks, the answering one last."""
        self.order(Begin(epoch, kv_blocks, revision, 0))
        places = itertools.product(range(self.stages), range(self.tensor))
        ranks = [await self.attach(epoch, stage, rank, kv_blocks) for stage, rank in places]
        ranks.sort(key=lambda rank: rank.answers)
        if not flow:
            for rank in ranks:
                rank.flow.clear()
        await self.supervisor.until(Begun, lambda begun: begun.epoch == epoch)
        self.order(Serve(epoch))
        return ranks

    def finish(
        self, epoch: int, reason: str = "RankLost", message: str = "a rank was lost", retry_s: float = 2.0
    ) -> None:
        self.order(Finish(epoch, reason, message, retry_s))

    async def http(self, token: bytes = TOKEN, serving: bool | None = True) -> HttpProcess:
        reader, writer = await asyncio.open_unix_connection(self.folder / "requests.sock")
        channel: Channel[RequestKinds] = Channel(reader, writer, request_codec)
        try:
            await channel.dial(token)
        except WireError:
            channel.abort()
            raise
        process = HttpProcess(channel)
        self.https.append(process)
        await process.serving(lambda word: serving is None or word.serving == serving)
        return process

    async def lost(self) -> PlanLost:
        return await self.supervisor.until(PlanLost)

    async def stop(self) -> int:
        for http in self.https:
            await http.inbox.stop()
        for rank in self.ranks:
            await rank.kill()
        await self.supervisor.stop()
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


@contextlib.asynccontextmanager
async def running_group(folder: Path, stages: int = 1, tensor: int = 1, **settings: object) -> AsyncIterator[Group]:
    """A started coordinator; settings are names of ``Env`` in lower case. It must end by itself with its supervisor."""
    group = Group(folder, stages, tensor, **settings)
    await group.start()
    try:
        yield group
    finally:
        code = await group.stop()
        print(group.log.read_text())
    assert code == 0
    assert "Traceback" not in group.log.read_text()


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
}
