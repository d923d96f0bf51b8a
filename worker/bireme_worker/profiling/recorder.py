"""A rank's side of `POST /profile`: hears what its supervisor asks and answers for each phase.

The written trace is read by a process of its own (`digest`). A recording never outlives its epoch. A GPU's tracer is
loaded by the first recording itself, on the thread that has imported torch, as Kineto wants it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import torch

from bireme.process import child_environment
from bireme.wire.control import Profile, Profiled
from bireme.wire.plan import Plan
from bireme.wire.profile import RankProfile
from bireme_worker.profiling.digest import Facts
from bireme_worker.profiling.files import make_room, packed_file, raw_file
from bireme_worker.profiling.session import Recording, Session

COURTESY: Final = 10
"""Nice value of the thread and of the process that reads the trace."""
DIGEST_LIMIT_S: Final = 60.0


class Recorder:
    """``send`` reaches the supervisor. `enter`, `turn` and `leave` are for the serving thread."""

    def __init__(self, stage: int, rank: int, state_dir: Path, send: Callable[[Profiled], None]) -> None:
        self._place = stage, rank
        self._state_dir = state_dir
        self._send = send
        self._epoch = 0
        self._device = torch.device("cpu")
        self._remark: Callable[[], None] = _nothing
        self._wake: Callable[[], None] = _nothing
        self._session: Session | None = None
        self._lock = threading.Lock()

    def enter(self, epoch: int, device: torch.device, remark: Callable[[], None], wake: Callable[[], None]) -> None:
        """An epoch serves; ``wake`` makes its thread take a turn soon, ``remark`` tells the runner of new marks."""
        self._device, self._remark, self._wake, self._epoch = device, remark, wake, epoch

    def turn(self, plan: Plan | None) -> None:
        """Before ``plan`` is launched, or when woken."""
        session = self._session
        if session is not None:
            session.turn(plan)

    def leave(self) -> None:
        """The epoch is over."""
        with self._lock:
            self._epoch, self._wake, session = 0, _nothing, self._session
        if session is not None:
            session.leave("the epoch ended")

    def hear(self, asked: Profile) -> None:
        """From the thread that reads commands."""
        session = self._session
        if session is not None and session.asked.id == asked.id:
            if asked.phase == "Record":
                session.record()
            else:
                session.give_up("it was given up")
            self._wake()
        elif asked.phase == "Prepare" and (why := self._prepare(asked)):
            self._send(Profiled(asked.id, self._place[1], why))

    def _prepare(self, asked: Profile) -> str:
        with self._lock:
            if self._session is not None:
                return "it still ends the profile before"
            if asked.epoch != self._epoch:
                return "it is not in that epoch"
            self._session = Session(asked, self._device, self._remark)
        threading.Thread(target=self._run, args=(self._session,), name="profile", daemon=True).start()
        return ""

    def _run(self, session: Session) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COURTESY)
        answer = Profiled(session.asked.id, self._place[1])
        try:
            report = self._accompany(session)
            answer = msgspec.structs.replace(answer, error=session.error, report=report)
        except (OSError, RuntimeError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            answer = msgspec.structs.replace(answer, error=str(error))
        finally:
            self._session = None
        self._send(answer)

    def _accompany(self, session: Session) -> RankProfile | None:
        make_room(self._state_dir, self._place)
        if session.device.type != "cuda":
            os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # it would report the lack of a GPU as an error
        session.arm()
        session.counted.wait()
        if not session.error:
            self._send(Profiled(session.asked.id, self._place[1]))
        session.go.wait()
        self._wake()
        if not session.ended.wait(session.asked.seconds):
            session.finish()
            self._wake()
            session.ended.wait()
        return None if session.error or session.trace is None else self._digest(session, session.trace)

    def _digest(self, session: Session, trace: Recording) -> RankProfile:
        stage, rank = self._place
        raw, packed = (named(self._state_dir, session.asked.id, self._place) for named in (raw_file, packed_file))
        trace.export_chrome_trace(str(raw))  # type: ignore[no-untyped-call]
        session.trace = None
        device = torch.cuda.get_device_name(session.device) if session.device.type == "cuda" else "cpu"
        facts = Facts(stage, rank, device, session.steps, session.tokens, session.sampled, session.limited)
        done = subprocess.run(
            [sys.executable, "-m", "bireme_worker.profiling.digest", str(raw), str(packed)],
            input=msgspec.json.encode(facts),
            env=child_environment({}),
            capture_output=True,
            timeout=DIGEST_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        return msgspec.json.decode(done.stdout, type=RankProfile)


def _nothing() -> None:
    """Nobody serves."""
