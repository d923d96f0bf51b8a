"""The next weights, read and verified beside the served ones by a thread that gives way to the steps.

On the CPU a commit then exchanges one model for the other between two steps: to copy into the served tensors would
touch every byte while clients wait, and saves no memory, because both are whole in memory by then anyway. For a GPU the
new weights are locked in the host's memory, from where it takes them at the speed of its bus.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch

from bireme.wire.control import Checkpoint, Discard, Prepared, Stage
from bireme_worker.checkpoints.checksums import verify
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.errors import CheckpointError, UnsupportedCheckpoint
from bireme_worker.checkpoints.reader import CheckpointReader, TensorInfo
from bireme_worker.models.errors import ConfigurationError
from bireme_worker.models.page_lock import PageLock
from bireme_worker.models.registry import StageModel

_RELEASE_AFTER_S: Final = 0.5
"""Giving hundreds of megabytes back holds the interpreter for moments, and the first token shall not wait for them."""
COURTESY: Final = 10
"""Nice value of the reading thread."""
FREE: Final = frozenset({"rms_norm_eps", "rope_theta", "rope_scaling", "dtype", "bos_id", "eos_ids"})
"""Settings in which two checkpoints may differ: all others decide shapes or which tensors there are."""

Wrap = Callable[[CheckpointReader], CheckpointReader]
Read = Callable[[Checkpoint, ModelConfig, Wrap], StageModel]


class Abandoned(Exception):
    """Nobody wants these weights any more."""


class Staging:
    """One attempt. ``model`` is set when it has succeeded, and ``locked`` where a GPU shall read it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.model: StageModel | None = None
        self.locked: PageLock | None = None
        self.abandoned = threading.Event()

    def heed(self) -> None:
        """Go on only if the weights are still wanted.

        Raises:
            Abandoned: they are not.
        """
        if self.abandoned.is_set():
            raise Abandoned


class Stager:
    """``read`` makes a model of a checkpoint that must fit the given one; ``send`` reaches the supervisor."""

    def __init__(self, rank: int, read: Read, send: Callable[[Prepared], None]) -> None:
        self._rank = rank
        self._read = read
        self._send = send
        self._served: ModelConfig | None = None
        self._device = torch.device("cpu")
        self._current: Staging | None = None
        self._thread: threading.Thread | None = None

    def serves(self, model: StageModel, device: torch.device) -> None:
        """What staged weights must fit from now on, and where they shall go."""
        self._served, self._device = model.config, device

    def hear(self, message: Stage | Discard) -> None:
        """Begin to stage, or drop what is staged."""
        current = self._current
        match message:
            case Stage(checkpoint):
                self.drop()
                self._current = Staging(checkpoint)
                self._thread = threading.Thread(
                    target=self._stage, args=(self._current, self._thread), name="staging", daemon=True
                )
                self._thread.start()
            case Discard(generation) if current is not None and current.checkpoint.generation == generation:
                self.drop()

    def drop(self) -> None:
        """Forget what is staged; a reading thread notices at its next tensor."""
        if self._current is not None:
            self._current.abandoned.set()
            self._current = None

    def take(self, *, generation: int) -> Staging | None:
        """The staged weights of this generation, once."""
        current = self._current
        if current is None or current.model is None or current.checkpoint.generation != generation:
            return None
        self._current = None
        return current

    def _stage(self, staging: Staging, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # two attempts at once would need the memory of three models
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COURTESY)
        error = ""
        try:
            assert self._served is not None, "Stage came before Load"
            if self._rank == 0:  # once per pod: its ranks read the same files
                verify(Path(staging.checkpoint.source), staging.heed)
            model = self._read(staging.checkpoint, self._served, lambda reader: _Interruptible(reader, staging.heed))
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # a thread begins on the first GPU
                staging.locked = PageLock(self._device)
                staging.locked.lock((part for weight in model.weights() for part in weight.tensors()), staging.heed)
            staging.model = model
        except Abandoned:
            return
        except (CheckpointError, ConfigurationError, OSError, MemoryError) as failure:
            error = str(failure)
        if staging.abandoned.is_set():
            staging.model = None
        else:
            self._send(Prepared(staging.checkpoint.generation, self._rank, error))


def check_fit(found: ModelConfig, served: ModelConfig) -> None:
    """Refuse weights that the memory of the served ones can't take.

    Raises:
        UnsupportedCheckpoint: names each setting with both values.
    """
    names = [field.name for field in fields(ModelConfig) if field.name not in FREE]
    pairs = [(name, getattr(found, name), getattr(served, name)) for name in names]
    wrong = [f"{name} is {there}, served is {here}" for name, there, here in pairs if there != here]
    if wrong:
        raise UnsupportedCheckpoint(
            f"another architecture or other shapes can't be reloaded in place ({'; '.join(wrong)}): "
            "change the deployment so that its pods are rolled"
        )


def release_later(model: StageModel, locked: PageLock | None) -> None:
    """Free the old weights without holding up the next step."""

    def release() -> None:
        if locked is not None:
            locked.release()
        for weight in model.weights():
            weight.tensor, weight.quantized = torch.empty(0), None

    with contextlib.suppress(RuntimeError):  # no thread to be had: the caller's own reference is the last one
        timer = threading.Timer(_RELEASE_AFTER_S, release)
        timer.daemon = True
        timer.start()


class _Interruptible:
    """A checkpoint whose reading ends when it is abandoned."""

    def __init__(self, reader: CheckpointReader, heed: Callable[[], None]) -> None:
        self._reader = reader
        self._heed = heed
        self.config: Mapping[str, Any] = reader.config
        self.generation_config: Mapping[str, Any] = reader.generation_config
        self.tensors: Mapping[str, TensorInfo] = reader.tensors

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        """As the checkpoint's own."""
        self._heed()
        return self._reader.read(name, slices)

    def close(self) -> None:
        """As the checkpoint's own."""
        self._reader.close()
