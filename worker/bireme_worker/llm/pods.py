"""The stage pods of a private group: one supervisor process each, on loopback addresses of its own.

They are what a deployment runs; the coordinator is spoken to directly. A rank that dies is replaced as there. They end
with this process, however it ends.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import msgspec

from bireme.names import Env
from bireme.process import child_environment
from bireme_worker.llm.errors import EngineFailed

_STOP_S: Final = 10.0
_POLL_S: Final = 0.05


class _Word(msgspec.Struct, frozen=True):
    """What a supervisor leaves in its state directory when it ends."""

    message: str


class Pods:
    """``settings`` is what all pods know of the model and the engine."""

    def __init__(self, settings: Mapping[str, str], stages: int, *, logs: Path | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise EngineFailed("the engine must be made in the main thread: Linux ends its processes with their thread")
        self._folder = TemporaryDirectory(prefix="bireme-", ignore_cleanup_errors=True)
        self._logs = logs
        self.token = secrets.token_bytes(32)
        token_file = self._root / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(self.token.hex())
        addresses = [_address() for _ in range(stages)]
        self.leader = addresses[0]
        group = {
            **settings,
            Env.GROUP_UID: f"llm-{os.getpid()}-{secrets.token_hex(4)}",
            Env.STAGES: str(stages),
            Env.LEADER_ADDRESS: addresses[0],
            Env.TOKEN_FILE: str(token_file),
            Env.DRAIN_TIMEOUT: "0",
        }
        self._processes = [self._start(group, stage, address) for stage, address in enumerate(addresses)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def requests_socket(self) -> Path:
        """Where the coordinator is spoken to."""
        return self._root / "stage-0" / "requests.sock"

    def check(self) -> None:
        """Return while every pod runs.

        Raises:
            EngineFailed: one has ended; in its own words.
        """
        for stage, process in enumerate(self._processes):
            if (code := process.poll()) is not None:
                raise EngineFailed(f"stage {stage} ended with code {code}: {self._last_word(stage)}")

    def close(self) -> None:
        """End all pods, and wait for that."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(deadline - time.monotonic(), _POLL_S))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    @property
    def _root(self) -> Path:
        return Path(self._folder.name)

    def _start(self, group: Mapping[str, str], stage: int, address: str) -> subprocess.Popen[bytes]:
        state = self._root / f"stage-{stage}"
        state.mkdir()
        own: dict[str, str] = {Env.STAGE: str(stage), Env.POD_IP: address, Env.STATE_DIR: str(state)}
        command: Sequence[str] = [sys.executable, "-m", "bireme_worker.supervisor.main"]
        with self._log(stage).open("ab") as log:
            # A session of its own: Ctrl-C in the terminal stops a batch, not the engine.
            return subprocess.Popen(
                command,
                env=child_environment({**group, **own}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, stage: int) -> Path:
        folder = self._logs or self._root
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"stage-{stage}.log"

    def _last_word(self, stage: int) -> str:
        try:
            left = (self._root / f"stage-{stage}" / "termination").read_bytes()
            return msgspec.json.decode(left, type=_Word).message
        except (OSError, msgspec.MsgspecError):
            lines = self._log(stage).read_text(errors="replace").splitlines()
            return next((line for line in reversed(lines) if line.strip()), "it left no word")


def _address() -> str:
    """Any address of 127.64.0.0/10: the ports of a pod are fixed."""
    draw = random.SystemRandom().randint
    return f"127.{draw(64, 127)}.{draw(0, 255)}.{draw(1, 254)}"
