"""A group of real rank processes without supervisors, formed and ready to be driven.

With random weights every rank draws its own on its device, so no checkpoint has to be written first
(``benchmarks/gpu/random_rank.py``); else it loads the checkpoint that it is given.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gpu.drive import BUDGET, SLOTS, Formed, drive
from benchmarks.gpu.weights import DEVICE
from benchmarks.gpu.workloads import Request
from bireme.names import Env
from bireme.wire.errors import WireError
from tests.support.rank_group import rank_group

RANDOM = "benchmarks.gpu.random_rank"
PLAIN = "benchmarks.gpu.plain_rank"
LOADED = "bireme_worker.rank.main"


@contextmanager
def running(
    source: Path, tensor: int, stages: int, module: str = LOADED, **changes: str
) -> Iterator[tuple[Formed, float]]:
    """A group that has formed epoch 1, and the seconds from process start until then."""
    environment = {
        Env.DEVICE: DEVICE,
        Env.MAX_MODEL_LENGTH: "8192",
        Env.MAX_RUNNING_REQUESTS: str(SLOTS),
        Env.MAX_BATCHED_TOKENS: str(BUDGET),
        **changes,
    }
    with tempfile.TemporaryDirectory() as state:
        begin = time.perf_counter()
        try:
            with rank_group(source, Path(state), tensor, stages, environment, module=module) as group:
                blocks = group.load()
                group.form(1)
                yield Formed(group, blocks), time.perf_counter() - begin
        except BaseException:
            for log in sorted(Path(state).glob("*.log")):
                print(f"-- {log.name}\n{log.read_text()[-3000:]}", flush=True)
            raise


def until_lost(engine: Formed, requests: Sequence[Request]) -> None:
    """Drive until the epoch ends: its connections go with it."""
    try:
        drive(engine, requests)
    except (WireError, OSError, ValueError):
        return
