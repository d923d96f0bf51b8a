"""Whether this machine has the memory that a deployment needs at the very least: its weights and its KV caches.

What is refused here would be ended by the kernel in the middle of its start, again and again, and other programs of
this machine with it. A GPU's memory is the worker's to judge, where it is.
"""

import os
from pathlib import Path
from typing import Final

from bireme.api import InferenceDeployment
from bireme.api.model import DType, Quantization
from bireme.cli.errors import Refused
from bireme.names import Env
from bireme_worker.checkpoints.size import least_bytes

_WIDE: Final = {DType.AUTO: 4, DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}
_BITS: Final = {Quantization.INT8: 8, Quantization.FP8: 8, Quantization.INT4: 4}
_GROUP: Final = Path("/sys/fs/cgroup")
_GPU: Final = Path("/dev/nvidiactl")


def check_room(deployment: InferenceDeployment, path: Path, free: int | None = None) -> None:
    """Return when ``free`` bytes, by default what this machine has, hold the groups of the checkpoint at ``path``.

    Raises:
        Refused: with the numbers.
    """
    if free is None and _GPU.exists() and os.environ.get(Env.DEVICE) != "cpu":
        return
    spec = deployment.spec
    weights = least_bytes(path, _WIDE[spec.model.dtype], _BITS.get(spec.model.quantization, 0))
    caches = (spec.engine.kv_cache.byte_count() or 0) * spec.parallelism.pipeline * spec.parallelism.tensor
    need, room = spec.replicas * (weights + caches), free_bytes() if free is None else free
    if need > room:
        raise Refused(
            f"{spec.replicas} groups of {_gib(weights)} weights and {_gib(caches)} KV cache take {_gib(need)} of "
            f"memory, and {_gib(room)} is free on this machine: lower spec.replicas, spec.engine.kvCache.bytes or "
            "spec.model.dtype, set spec.model.quantization, or take a smaller model"
        )


def free_bytes() -> int:
    """Return what is free: on the machine, and in the control group that this process is in."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        cached = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit, or an older kind of control group
        return free
    return min(free, limit - used + int(cached.get("inactive_file", "0")))


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
