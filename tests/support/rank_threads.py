"""Real runners of a whole group in threads of one process, with real sockets between them: quick to make.

For what concerns numbers. What concerns processes (kills, stops, exit codes) is tested with `rank_group`.
"""

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bireme.wire.control import Address, Checkpoint
from bireme.wire.plan import Plan, Result
from bireme_worker.identity import Identity
from bireme_worker.models.progress import Progress
from bireme_worker.parallel.data_listener import DataListener
from bireme_worker.parallel.errors import EpochEnded
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.parallel.mesh import Mesh, Place
from bireme_worker.rank.loading import load_runner
from bireme_worker.rank.runner import Runner

TOKEN = bytes(range(32))
_hosts = itertools.count()


def loopback_host() -> str:
    """An address of its own for every pod of a test: ports are fixed, so addresses must differ."""
    number = next(_hosts)
    return f"127.{100 + os.getpid() % 100}.{number // 250 % 250}.{number % 250 + 1}"


def identity(source: Path, stage: int = 0, stages: int = 1, tensor: int = 1, **changes: Any) -> Identity:
    """A stage pod of a test group."""
    values: dict[str, Any] = {
        "group": "test",
        "group_index": 0,
        "stage": stage,
        "stages": stages,
        "tensor": tensor,
        "stage_layers": (),
        "incarnation": 1,
        "leader": "127.0.0.1",
        "pod_ip": loopback_host(),
        "token": TOKEN,
        "state_dir": Path(),
        "revision": "r1",
        "model_name": "tiny",
        "model_aliases": (),
        "checkpoint": Checkpoint(str(source), "1"),
        "dtype": "auto",
        "max_model_length": 0,
        "max_running_requests": 64,
        "max_batched_tokens": 512,
        "max_queued_requests": 256,
        "kv_bytes": 0,
        "prefix_caching": True,
        "drain_timeout_s": 300.0,
        "http_processes": 1,
        "spare_rank": False,
    }
    return Identity(**{**values, **changes})


class ThreadedRanks:
    """A formed group of ``stages`` × ``tensor`` runners."""

    def __init__(self, source: Path, tensor: int, stages: int, **changes: Any) -> None:
        self.epoch = 1
        self.gates = [EpochGate(self.epoch) for _ in range(stages * tensor)]
        self.runners: list[Runner] = []
        self._results: SimpleQueue[Result | BaseException] = SimpleQueue()
        self._plans: list[SimpleQueue[Plan | None]] = []
        self._threads: list[threading.Thread] = []
        self._listeners: list[DataListener] = []
        pods = [identity(source, stage, stages, tensor, **changes) for stage in range(stages)]
        data = tuple(tuple(pod.data_address(rank) for rank in range(tensor)) for pod in pods)
        for pod in pods:
            for rank in range(tensor):
                self._start(pod, rank, data)

    def send_plan(self, plan: Plan) -> None:
        for plans in self._plans:
            plans.put(plan)

    def receive_result(self) -> Result:
        result = self._results.get(timeout=60)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        for plans in self._plans:
            plans.put(None)
        for gate in self.gates:
            gate.abort("the test is over")
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()

    def _start(self, pod: Identity, rank: int, data: tuple[tuple[Address, ...], ...]) -> None:
        runner = load_runner(pod, rank, pod.checkpoint, Progress())
        listener = DataListener(pod.data_address(rank), TOKEN)
        place = Place(pod.stage, pod.stages, rank, pod.tensor)
        plans: SimpleQueue[Plan | None] = SimpleQueue()
        gate = self.gates[len(self.runners)]

        def serve() -> None:
            try:
                runner.begin(Mesh(place, listener, TOKEN).connect(gate, data, limit_s=30))
                runner.warm_up(self.epoch)
                while (plan := plans.get()) is not None:
                    result = runner.collect(runner.launch(plan))
                    if place.is_last and place.rank == 0:
                        self._results.put(result)
            except EpochEnded:
                pass
            except BaseException as error:  # noqa: BLE001  shown by the test that waits
                self._results.put(error)
            finally:
                gate.close()

        thread = threading.Thread(target=serve, daemon=True)
        self.runners.append(runner)
        self._plans.append(plans)
        self._listeners.append(listener)
        self._threads.append(thread)
        thread.start()


@contextmanager
def threaded_ranks(source: Path, tensor: int = 1, stages: int = 1, **changes: Any) -> Iterator[ThreadedRanks]:
    ranks = ThreadedRanks(source, tensor, stages, **changes)
    try:
        yield ranks
    finally:
        ranks.close()
