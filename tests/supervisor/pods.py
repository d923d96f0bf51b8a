"""Real supervisors as real processes, each on its own loopback address, and what a test asks them."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec

from bireme.names import Env, Port
from bireme.wire.state import RankState, StateDocument, read_state
from bireme_worker.supervisor.state_file import Termination, read_termination

ROOT = Path(__file__).parent.parent.parent
TOKEN = bytes(range(32))
PATIENCE_S = 60.0
"""A dozen Python processes start within this, on a machine that has as many others to run."""
NOTHING_BY_TIME = dict.fromkeys(("silent_s", "silent_kill_s", "peer_silent_s", "progress_s"), 1000.0)
"""Limits under which only sockets and process exits can tell that something is lost."""
STAND_INS = {"rank": "scripted_rank", "coordinator": "scripted_plan_host", "http": "scripted_http"}

_addresses = itertools.count(1)


def new_address() -> str:
    """A loopback address that no other pod of this test run has."""
    number = next(_addresses)
    return f"127.{64 + os.getpid() % 64}.{number // 250}.{number % 250 + 1}"


class Pod:
    """One stage pod. ``start`` may be called again after its end, as a kubelet does."""

    def __init__(self, folder: Path, stage: int, leader: str, **options: object) -> None:
        self.stage = stage
        self.address = leader if stage == 0 else str(options.get("address") or new_address())
        self.leader = leader
        self.options = options
        self.state_dir = folder / f"stage-{stage}-{self.address}"
        self.state_dir.mkdir()
        self.log = self.state_dir / "log"
        self.process: subprocess.Popen[bytes] | None = None
        token = folder / "token"
        token.write_text(TOKEN.hex())
        self.environment: dict[str, str] = {
            Env.GROUP_UID: "g",
            Env.STAGE: str(stage),
            Env.STAGES: str(options.get("stages", 2)),
            Env.TENSOR: str(options.get("tensor", 2)),
            Env.INCARNATION: str(options.get("incarnation", 1)),
            Env.LEADER_ADDRESS: str(options.get("dials", leader)),
            Env.POD_IP: self.address,
            Env.TOKEN_FILE: str(token),
            Env.STATE_DIR: str(self.state_dir),
            Env.MODEL_NAME: "m",
            Env.MODEL_PATH: f"/models/{options.get('model', 'good')}",
            Env.MODEL_REVISION: "1",
            Env.DRAIN_TIMEOUT: str(options.get("drain_timeout_s", 60)),
        }

    def start(self, **limits: float) -> "Pod":
        assert self.process is None or self.process.poll() is not None
        inside = ["ip", "netns", "exec", str(self.options["netns"])] if "netns" in self.options else []
        command = [*inside, sys.executable, "-m", "bireme_worker.supervisor.main"]
        for kind, module in STAND_INS.items():
            command += [f"--{kind}-module", f"tests.support.{module}"]
        for name, value in limits.items():
            command += ["--limit", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **self.environment, Env.PARENT_PID: str(os.getpid())},
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        """The exit code, when it comes."""
        assert self.process is not None
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), PATIENCE_S)

    def termination(self) -> Termination | None:
        return read_termination(self.state_dir)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # -- what a test asks -----------------------------------------------------------------------------------------

    def url(self, path: str) -> str:
        return f"http://{self.address}:{int(Port.ADMIN)}{path}"

    async def get(self, path: str, token: bytes | None = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token.hex()}"} if token is not None else {}
        async with aiohttp.ClientSession() as session, session.get(self.url(path), headers=headers) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: object = None, token: bytes = TOKEN) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token.hex()}"}
        content = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url(path), headers=headers, data=content) as response,
        ):
            return response.status, await response.text()

    async def watch(self, interval_s: float = 0.5) -> AsyncGenerator[StateDocument, None]:
        """The documents of `/watch`, from now on; dials until the pod listens."""
        headers = {"authorization": f"Bearer {TOKEN.hex()}"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(self.url(f"/watch?interval={interval_s}"), headers=headers) as response:
                        async for line in response.content:
                            yield read_state(line)
                await asyncio.sleep(0.02)

    async def until(self, wanted: Callable[[StateDocument], bool]) -> StateDocument:
        """The first document that ``wanted`` accepts, from now on; for what may pass before, see ``listened``."""
        async with contextlib.aclosing(self.watch()) as documents:
            return await Listener(self, documents).until(wanted)

    @contextlib.asynccontextmanager
    async def listened(self) -> "AsyncIterator[Listener]":
        """Listens before the block begins: what it does to the pod shows, however soon it is over."""
        async with contextlib.aclosing(self.watch()) as documents:
            listener = Listener(self, documents)
            await listener.until(lambda _: True)
            yield listener

    async def until_serving(self, above: int = 0) -> StateDocument:
        return await self.until(lambda document: document.ready and document.epoch > above)


class Listener:
    """Every document of a pod, one after the other; what was looked at is not looked at again."""

    def __init__(self, pod: Pod, documents: AsyncGenerator[StateDocument, None]) -> None:
        self._pod = pod
        self._documents = documents
        self._seen: list[str] = []

    async def until(self, wanted: Callable[[StateDocument], bool]) -> StateDocument:
        """The next document that ``wanted`` accepts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                async for document in self._documents:
                    self._seen.append(f"{document.epoch} {document.state}/{document.reason} {document.message}")
                    if wanted(document):
                        return document
        raise AssertionError(f"never came: saw {self._seen[-6:]}\n{self._pod.log.read_text()[-4000:]}")


class Pods:
    """All pods of one test; ``end`` leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.leader_address = new_address()
        self.all: list[Pod] = []

    def make(self, stage: int, **options: object) -> Pod:
        pod = Pod(self.folder, stage, self.leader_address, **options)
        self.all.append(pod)
        return pod

    def group(self, **limits: float) -> tuple[Pod, Pod]:
        """Two stages of two ranks, started."""
        return self.make(0).start(**limits), self.make(1).start(**limits)

    def end(self) -> None:
        for pod in self.all:
            pod.kill()


def rank(document: StateDocument, stage: int, number: int) -> RankState:
    """One rank in a document."""
    [found] = [entry for entry in document.stages if entry.stage == stage]
    return found.ranks[number]


def pids(document: StateDocument, stage: int) -> list[tuple[int, int]]:
    """(pid, loads) of each rank of a stage."""
    [found] = [entry for entry in document.stages if entry.stage == stage]
    return [(entry.pid, entry.loads) for entry in found.ranks]


def children(pid: int) -> list[int]:
    """Child processes of ``pid``, from the kernel."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
