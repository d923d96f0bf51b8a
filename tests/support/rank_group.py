"""Real rank processes of one group, driven by a test that plays supervisor and coordinator over the real wire.

Every stage is a pod of its own with its own loopback address. The test sees each control message and can kill, stop and
respawn single ranks.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from bireme.names import Env, Port
from bireme.process import child_environment
from bireme.wire.control import (
    Address,
    Beat,
    Become,
    Checkpoint,
    ControlMessage,
    End,
    Ended,
    Failed,
    Form,
    Formed,
    Load,
    Loaded,
    RankBeat,
    Stop,
    control_codec,
)
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme.wire.plan import Attach, Plan, PlanKinds, Result, plan_codec
from bireme_operator.local.devices import own_device, visible_gpus
from tests.support.rank_threads import TOKEN, loopback_host

M = TypeVar("M")
PATIENCE_S = 90.0
RANK = "bireme_worker.rank.main"


@dataclass
class RankProcess:
    """One rank process and its control line."""

    stage: int
    rank: int
    process: subprocess.Popen[str]
    channel: SocketChannel[ControlMessage]
    messages: SimpleQueue[ControlMessage] = field(default_factory=SimpleQueue)
    beat: RankBeat | None = None

    def read(self) -> None:
        while True:
            try:
                message = self.channel.receive()
            except WireError:
                return
            if isinstance(message, Beat):
                (self.beat,) = message.ranks
            else:
                self.messages.put(message)

    def wait_for(self, kind: type[M], patience_s: float = PATIENCE_S) -> M:
        """The next message of ``kind``; others before it are dropped."""
        deadline = time.monotonic() + patience_s
        seen: list[ControlMessage] = []
        while True:
            try:
                message = self.messages.get(timeout=max(deadline - time.monotonic(), 0.001))
            except Empty:
                raise AssertionError(
                    f"stage {self.stage} rank {self.rank}: no {kind.__name__} in {patience_s} s, got {seen}, "
                    f"exit code {self.process.poll()}, last beat {self.beat}"
                ) from None
            if isinstance(message, kind):
                return message
            assert not isinstance(message, Failed), f"stage {self.stage} rank {self.rank} ended: {message.message}"
            seen.append(message)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)


class RankGroup:
    """``stages`` × ``tensor`` processes; plays their supervisors and their coordinator."""

    def __init__(
        self,
        source: Path,
        state_dir: Path,
        tensor: int = 1,
        stages: int = 1,
        environment: dict[str, str] | None = None,
        *,
        module: str = RANK,
    ) -> None:
        self.epoch = 0
        self._module = module
        self.tensor, self.stages = tensor, stages
        self.checkpoint = Checkpoint(str(source), "1")
        self._state_dir = state_dir
        self._environment = environment or {}
        self.hosts = [loopback_host() for _ in range(stages)]
        self._token_file = state_dir / "token"
        self._token_file.write_text(TOKEN.hex())
        self._plan_listener = socket.create_server((self.hosts[0], Port.PLAN))
        self._plans: dict[tuple[int, int], SocketChannel[PlanKinds]] = {}
        self.ranks = {(stage, rank): self.spawn(stage, rank) for stage in range(stages) for rank in range(tensor)}

    def spawn(self, stage: int, rank: int, *, as_spare: bool = False) -> RankProcess:
        """Start one rank process; a spare is told its place only after it has come up."""
        ours, theirs = socket.socketpair()
        extra = {
            Env.GROUP_UID: "test",
            Env.STAGE: str(stage),
            Env.STAGES: str(self.stages),
            Env.TENSOR: str(self.tensor),
            Env.LEADER_ADDRESS: self.hosts[0],
            Env.POD_IP: self.hosts[stage],
            Env.TOKEN_FILE: str(self._token_file),
            Env.STATE_DIR: str(self._state_dir),
            Env.MODEL_NAME: "test",
            Env.MODEL_PATH: self.checkpoint.source,
            **self._environment,
        }
        extra |= own_device(stage, self.tensor, extra.get(Env.DEVICE, ""), visible_gpus())
        command = [sys.executable, "-m", self._module, *([] if as_spare else ["--rank", str(rank)])]
        with (self._state_dir / f"rank-{stage}-{rank}.log").open("a") as log, theirs:
            process = subprocess.Popen(
                [*command, "--control-fd", str(theirs.fileno())],
                env=child_environment(extra),
                pass_fds=[theirs.fileno()],
                stderr=log,
                text=True,
            )
        one = RankProcess(stage, rank, process, SocketChannel(ours, control_codec))
        threading.Thread(target=one.read, daemon=True).start()
        if as_spare:
            one.channel.send(Become(rank))
        return one

    def respawn(self, stage: int, rank: int, *, as_spare: bool = False) -> None:
        """Replace a dead rank, as its supervisor would."""
        dead = self.ranks[stage, rank]
        dead.process.wait(timeout=10)
        dead.channel.close()
        self.ranks[stage, rank] = self.spawn(stage, rank, as_spare=as_spare)

    def load(self) -> int:
        """Load everywhere; returns the blocks that every rank has."""
        for one in self.ranks.values():
            one.channel.send(Load(self.checkpoint))
        return min(one.wait_for(Loaded).kv_blocks for one in self.ranks.values())

    def send_form(self, epoch: int) -> None:
        """Tell every rank to form ``epoch``."""
        self.epoch = epoch
        data = tuple(tuple(Address(host, Port.DATA + rank) for rank in range(self.tensor)) for host in self.hosts)
        for one in self.ranks.values():
            one.channel.send(Form(epoch, data, Address(self.hosts[0], Port.PLAN), 64))

    def form(self, epoch: int) -> None:
        """Form ``epoch`` and wait until it stands."""
        self.send_form(epoch)
        self._accept_plans(epoch)
        for one in self.ranks.values():
            assert one.wait_for(Formed).epoch == epoch

    def end(self, reason: str = "test", *, without: frozenset[tuple[int, int]] = frozenset()) -> None:
        """End the epoch on all ranks but ``without`` and wait until they are idle."""
        alive = [one for place, one in self.ranks.items() if place not in without]
        for one in alive:
            one.channel.send(End(self.epoch, reason))
        for one in alive:
            assert one.wait_for(Ended).epoch == self.epoch
        self.drop_plans()

    def send_plan(self, plan: Plan, *, without: tuple[int, int] | None = None) -> None:
        for place, channel in self._plans.items():
            if place != without:
                channel.send(plan)

    def receive_result(self) -> Result:
        result = self._plans[self.stages - 1, 0].receive()
        assert isinstance(result, Result)
        return result

    def close(self) -> None:
        for one in self.ranks.values():
            with contextlib.suppress(WireError):
                one.channel.send(Stop("the test is over"))
        for one in self.ranks.values():
            one.process.send_signal(signal.SIGCONT)
            try:
                one.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.channel.close()
        self.drop_plans()
        self._plan_listener.close()

    def _accept_plans(self, epoch: int) -> None:
        self._plan_listener.settimeout(PATIENCE_S)
        while len(self._plans) < self.tensor * self.stages:
            sock, _ = self._plan_listener.accept()
            sock.settimeout(PATIENCE_S)
            channel: SocketChannel[PlanKinds] = SocketChannel(sock, plan_codec)
            channel.accept(TOKEN)
            attach = channel.receive()
            assert isinstance(attach, Attach)
            assert attach.epoch == epoch
            self._plans[attach.stage, attach.rank] = channel

    def drop_plans(self) -> None:
        """Close the coordinator's connections."""
        for channel in self._plans.values():
            channel.close()
        self._plans.clear()


@contextmanager
def rank_group(
    source: Path,
    state_dir: Path,
    tensor: int = 1,
    stages: int = 1,
    environment: dict[str, str] | None = None,
    *,
    module: str = RANK,
) -> Iterator[RankGroup]:
    """``module``: the program of a rank."""
    group = RankGroup(source, state_dir, tensor, stages, environment, module=module)
    try:
        yield group
    finally:
        group.close()
