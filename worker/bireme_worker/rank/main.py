"""The rank process: loads its share of the weights once, then serves epoch after epoch.

States: Spawned → Loading → Idle → Forming → Serving → Idle. A lost peer ends the epoch, never this process. What ends
it: Stop (0), a bad configuration (64) or checkpoint (65), a fault of its own (70), and a supervisor that is gone (75).
"""

import argparse
import ctypes
import gc
import os
import re
import signal
import socket
import sys
import threading
from typing import Final

from bireme.names import Env, Exit, Reason
from bireme.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before torch, whose import takes seconds in which a lost parent would go unseen

# Ranks share the pod's cores: more threads than asked for would fight over them. Read when torch is imported.
os.environ["OMP_NUM_THREADS"] = os.environ.get(Env.THREADS, "1")

import torch

from bireme.wire.control import (
    Become,
    Checkpoint,
    Committed,
    ControlMessage,
    End,
    Ended,
    Failed,
    Form,
    Formed,
    Load,
    Loaded,
    Lost,
    Profile,
    Stop,
    control_codec,
)
from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.identity import BadIdentity, Identity, read_identity
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel
from bireme_worker.parallel.data_listener import DataListener, PortInUse
from bireme_worker.parallel.errors import EpochEnded
from bireme_worker.parallel.mesh import Mesh, Place
from bireme_worker.profiling.marks import listen_for_nsight
from bireme_worker.profiling.recorder import Recorder
from bireme_worker.rank.control import Control
from bireme_worker.rank.errors import BadPlan
from bireme_worker.rank.loading import load_runner, read_beside
from bireme_worker.rank.phases import Phases
from bireme_worker.rank.readiness import get_ready
from bireme_worker.rank.runner import Runner
from bireme_worker.rank.serving import Serving
from bireme_worker.rank.staging import Stager, Staging, Wrap, release_later

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ASKED: Final = re.compile(r"tried to allocate [\d.]+ \w+", re.IGNORECASE)
"""How torch tells how much it could not have."""
_HEAP_BYTES: Final = 32 << 20


class RankProcess:
    """Rank ``rank`` of the pod that ``identity`` describes."""

    def __init__(self, identity: Identity, rank: int, control: Control, progress: Progress) -> None:
        self._identity = identity
        self._rank = rank
        self._control = control
        self._progress = progress
        self._listener = DataListener(identity.data_address(rank), identity.token)
        self._loaded: Checkpoint | None = None
        self._runner: Runner | None = None
        self._stager = Stager(rank, self._read, control.send)
        self._recorder = Recorder(identity.stage, rank, identity.state_dir, control.send)
        threading.Thread(target=self._hear_asides, name="asides", daemon=True).start()

    def run(self) -> None:
        """Obey commands until Stop."""
        self._progress.phase = "Idle"
        while True:
            message = self._control.inbox.get()
            if isinstance(message, Stop):
                return
            self._obey(message)

    def _obey(self, message: ControlMessage) -> None:
        match message:
            case Load(checkpoint):
                self._load(checkpoint)
            case Form():
                self._serve(message)
            case End(epoch):
                # This thread has left the epoch before it came here: the device is idle.
                self._control.send(Ended(epoch, self._rank))
            case _:
                raise AssertionError(f"a supervisor does not send {type(message).__name__} to a rank")

    def _load(self, checkpoint: Checkpoint) -> None:
        if self._runner is not None and (staged := self._stager.take(generation=checkpoint.generation)):
            self._exchange(self._runner, staged)
        if self._runner is None or not _same_weights(self._loaded, checkpoint):
            self._stager.drop()
            self._runner = None  # two models need not fit
            self._progress.phase = "Loading"
            phases = Phases()
            self._runner = load_runner(self._identity, self._rank, checkpoint, self._progress, phases)
            # Not on stderr, whose last line explains an exit.
            print(f"rank {self._rank}: {phases}", flush=True)
            self._loaded = checkpoint
            self._stager.serves(self._runner.model, self._runner.device)
            gc.collect()
            gc.freeze()  # what lives as long as the process need not be walked in every collection
            self._progress.phase = "Idle"
        self._control.send(Loaded(checkpoint, self._runner.cache.blocks, self._rank))

    def _hear_asides(self) -> None:
        while True:
            message = self._control.asides.get()
            if isinstance(message, Profile):
                self._recorder.hear(message)
            else:
                self._stager.hear(message)

    def _read(self, checkpoint: Checkpoint, served: ModelConfig, wrap: Wrap) -> StageModel:
        return read_beside(self._identity, self._rank, checkpoint, served, wrap)

    def _commit(self, generation: int) -> None:
        """Between two steps: other weights from the next one on."""
        staged = self._stager.take(generation=generation)
        if staged is None or self._runner is None:
            raise BadPlan(f"generation {generation} is to be committed, but it was not staged here")
        self._exchange(self._runner, staged)
        self._control.send(Committed(generation, self._rank))

    def _exchange(self, runner: Runner, staged: Staging) -> None:
        assert staged.model is not None
        release_later(runner.exchange(staged.model, staged.locked), staged.locked)
        self._loaded = staged.checkpoint
        self._stager.serves(staged.model, runner.device)

    def _serve(self, form: Form) -> None:
        assert self._runner is not None, "Form came before Load"
        gate = self._control.open_gate(form.epoch)
        identity, progress = self._identity, self._progress
        place = Place(identity.stage, identity.stages, self._rank, identity.tensor)
        mesh = Mesh(place, self._listener, identity.token, self._runner.links)
        serving = Serving(
            place, mesh, identity.token, self._runner, progress, commit=self._commit, recorder=self._recorder
        )
        progress.phase, progress.epoch, progress.step = "Forming", form.epoch, 0
        try:
            serving.run(form, gate, lambda: self._control.send(Formed(form.epoch, self._rank)))
        except EpochEnded as error:
            if not self._control.was_ended(form.epoch):
                self._control.send(Lost(form.epoch, Reason.RANK_LOST, str(error)))
        finally:
            progress.phase, progress.epoch, progress.busy = "Idle", 0, False


def _same_weights(loaded: Checkpoint | None, wanted: Checkpoint) -> bool:
    return loaded is not None and (loaded.source, loaded.model_revision) == (wanted.source, wanted.model_revision)


def _tune_allocator() -> None:
    """Keep freed memory for the next step, in one arena for all threads: fast, and a bound on what a rank takes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)


def _fail(control: Control, rank: int, reason: Reason, error: Exception, code: Exit) -> int:
    print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
    control.send(Failed(reason, str(error), exit_code=code, rank=rank))
    return code


class NoMemory(Exception):
    """What ``error`` means for whoever reads it."""

    def __init__(self, error: Exception) -> None:
        amount = _ASKED.search(str(error))
        asked = f" ({amount[0]})" if amount else ""
        super().__init__(
            f"there is no memory for what it needs{asked}: lower engine.kvCache.bytes or engine.maxBatchedTokens, "
            "split the model over more ranks, or free memory"
        )


def reason_of(error: Exception) -> Reason:
    """Memory and everything else need different remedies. Torch's CPU allocator has no error class of its own."""
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return Reason.OUT_OF_MEMORY if memory else Reason.DEVICE_ERROR


def run_rank(rank: int, channel: SocketChannel[ControlMessage]) -> int:
    """Run until Stop or a fault; returns the exit code."""
    progress = Progress()
    control = Control(channel, rank, progress)
    control.start()
    try:
        RankProcess(read_identity(), rank, control, progress).run()
    except (BadIdentity, ConfigurationError, PortInUse) as error:
        return _fail(control, rank, Reason.BAD_CONFIGURATION, error, Exit.BAD_CONFIGURATION)
    except CheckpointError as error:
        return _fail(control, rank, Reason.BAD_CHECKPOINT, error, Exit.BAD_CHECKPOINT)
    except Exception as error:  # noqa: BLE001  the supervisor must learn why this process ends
        sys.excepthook(type(error), error, error.__traceback__)
        reason = reason_of(error)
        told = NoMemory(error) if reason is Reason.OUT_OF_MEMORY else error
        return _fail(control, rank, reason, told, Exit.INTERNAL)
    return Exit.DRAINED


def _wait_for_a_place(channel: SocketChannel[ControlMessage]) -> int:
    """A spare's whole life until it is needed: the rank that it shall be."""
    get_ready()
    try:
        message = channel.receive()
    except WireError:
        sys.exit(Exit.PEER_LOST)
    assert isinstance(message, Become), f"a spare rank was sent {type(message).__name__} first"
    return message.rank


def main() -> None:
    """Command line of the supervisor's child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the supervisor decides
    parser = argparse.ArgumentParser(description="One rank of a stage pod; started by the supervisor.")
    parser.add_argument("--rank", type=int, help="left out: a spare, which is told by its supervisor")
    parser.add_argument("--control-fd", type=int, required=True)
    arguments = parser.parse_args()
    _tune_allocator()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if os.environ.get(Env.NVTX) == "1":
        listen_for_nsight()
    channel = SocketChannel(socket.socket(fileno=arguments.control_fd), control_codec)
    rank = arguments.rank if arguments.rank is not None else _wait_for_a_place(channel)
    code = run_rank(rank, channel)
    sys.stderr.flush()
    # Threads still read and beat: leave without waiting for them.
    os._exit(code)


if __name__ == "__main__":
    main()
