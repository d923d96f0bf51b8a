"""Sums over GPUs inside a graph, ours with the abort word polled, beside NCCL and torch's symmetric memory.

On two GPUs A9, on four M4.

Ours is what ranks use (``parallel/exchange.py``), over open memory whose handles go through torch's own group here.
"""

import multiprocessing
import os
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.job import Bench, tell

SIZES_KB = (8, 32, 128, 512)
"""The line's; prompts and large batches need LARGER_KB too."""
LARGER_KB = (2048, 8192, 65536)
PER_GRAPH, TURNS = 50, 15
WAYS = ("ours", "nccl", "one-shot", "two-shot")


@dataclass(frozen=True)
class Ground:
    """Nothing is laid: each way needs processes of its own."""

    bench: Bench


@contextmanager
def ground(bench: Bench) -> Iterator[Ground]:
    """No preparation."""
    yield Ground(bench)


def _all(line: str, world: int, on: Ground) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=_rank, args=(rank, world, port, queue)) for rank in range(world)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert not any(one.exitcode for one in ranks), f"ranks ended with {[one.exitcode for one in ranks]}"
    figures, troubles = queue.get()
    for size in SIZES_KB:
        beside = ", ".join(f"{way} {us:.1f}" for way, us in figures[size].items() if way != "ours")
        if "ours" in figures[size]:
            on.bench.measured(
                f"{line}.{size}", figures[size]["ours"], f"{beside}; median of {TURNS} graphs of {PER_GRAPH}"
            )
    for size in LARGER_KB:
        tell(note=f"{size} KB: " + ", ".join(f"{way} {us:.1f} us" for way, us in figures[size].items()))
    for way, trouble in troubles.items():
        tell(failed=f"{line} {way}", text=trouble)


def _rank(rank: int, world: int, port: int, queue: Any) -> None:
    torch.cuda.set_device(rank)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    figures: dict[int, dict[str, float]] = {size: {} for size in (*SIZES_KB, *LARGER_KB)}
    troubles: dict[str, str] = {}
    for way, make in zip(WAYS, (_ours(rank, world), _nccl, _one_shot, _two_shot), strict=True):
        try:
            for size, found in figures.items():
                call, x = make(size * 512)
                _check(call, x, rank)
                found[way] = _graph_us(call)
        except Exception as error:  # noqa: BLE001  a way that this machine lacks
            troubles[way] = repr(error)[:300]
            break
    if rank == 0:
        queue.put((figures, troubles))
    dist.barrier()
    dist.destroy_process_group()


Made = tuple[Callable[[], torch.Tensor], torch.Tensor]
"""Sums, and returns where the sum is; the tensor to be summed."""


def _ours(rank: int, world: int) -> Callable[[int], Made]:
    from bireme_worker.parallel.exchange import Exchange

    exchange = Exchange(rank, world, hidden=0, ids=8, device=torch.device("cuda", rank))
    handles: list[bytes] = [b""] * world
    exchange.prepare()
    dist.all_gather_object(handles, exchange.handle())
    exchange.join({peer: exchange.open(handles[peer]) for peer in range(world) if peer != rank})
    dist.barrier()

    def make(elements: int) -> Made:
        x = torch.empty(elements, device="cuda", dtype=torch.bfloat16)

        def call() -> torch.Tensor:
            exchange.all_reduce(x)
            return x

        return call, x

    return make


def _nccl(elements: int) -> Made:
    x = torch.empty(elements, device="cuda", dtype=torch.bfloat16)

    def call() -> torch.Tensor:
        dist.all_reduce(x)
        return x

    return call, x


def _one_shot(elements: int) -> Made:
    x, name = _symmetric(elements)
    return (lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name)), x


def _two_shot(elements: int) -> Made:
    x, name = _symmetric(elements)
    return (lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", name)), x


def _symmetric(elements: int) -> tuple[torch.Tensor, str]:
    import torch.distributed._symmetric_memory as symmetric

    x = symmetric.empty((elements,), device=torch.device("cuda", dist.get_rank()), dtype=torch.bfloat16)
    assert dist.group.WORLD is not None
    symmetric.rendezvous(x, dist.group.WORLD)
    return x, dist.group.WORLD.group_name


def _check(call: Callable[[], torch.Tensor], x: torch.Tensor, rank: int) -> None:
    everyone = [
        torch.randn(x.shape, generator=torch.Generator(x.device).manual_seed(one), device=x.device, dtype=x.dtype)
        for one in range(dist.get_world_size())
    ]
    x.copy_(everyone[rank])
    torch.cuda.synchronize()
    dist.barrier()
    found = call().clone()
    torch.cuda.synchronize()
    wanted = torch.stack(everyone).float().sum(0)
    error = float((found.float() - wanted).norm() / wanted.norm())
    assert error < 1e-2, f"relative error {error}"


def _graph_us(call: Callable[[], torch.Tensor]) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PER_GRAPH):
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / PER_GRAPH)
    return float(statistics.median(times[3:]))


CASES: Mapping[str, Callable[[Ground], None]] = {"A9": partial(_all, "A9", 2), "M4": partial(_all, "M4", 4)}
