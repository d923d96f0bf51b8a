"""Proof of the survivor rule (docs/design.md, section 5) on real GPUs: it decides how the GPU engine is built.

One process per GPU replays one CUDA graph of our own one-shot all-reduces, which read their peers' addresses from a
device table and leave every spin when a host-mapped abort word is set. One rank is SIGKILLed in the middle of a
replay. Asked: does every survivor's stream become idle once its word is set, does its context live, and is the same
graph right again after a new peer has joined and only the table was rewritten? Prints one JSON line last.

    python benchmarks/gpu/survivor_rule.py [--rounds 5] [--reduces 64]        needs two GPUs or more, torch and triton
"""

import argparse
import ctypes
import json
import multiprocessing as mp
import os
import signal
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import triton
import triton.language as tl

ELEMENTS = 64 * 4096
BLOCK = 4096
BLOCKS = ELEMENTS // BLOCK


@triton.jit  # type: ignore[untyped-decorator]
def one_shot(
    x: Any,
    out: Any,
    buffers: Any,
    signals: Any,
    sequence: Any,
    abort: Any,
    elements: int,
    rank: tl.constexpr,
    world: tl.constexpr,
    blocks: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Sum ``x`` [elements] over all ranks into ``out``; two buffers in turn make a closing barrier unnecessary."""
    part = tl.program_id(0)
    turn = tl.load(sequence + part) + 1
    half = (turn & 1) * elements
    at = part * block + tl.arange(0, block)
    mine = tl.load(buffers + rank).to(tl.pointer_type(tl.bfloat16)) + half
    tl.store(mine + at, tl.load(x + at))
    tl.debug_barrier()
    for peer in tl.static_range(world):
        if peer != rank:
            theirs = tl.load(signals + peer).to(tl.pointer_type(tl.int32)) + rank * blocks + part
            tl.atomic_xchg(theirs, turn, sem="release", scope="sys")
    for peer in tl.static_range(world):
        if peer != rank:
            ours = tl.load(signals + rank).to(tl.pointer_type(tl.int32)) + peer * blocks + part
            seen = tl.atomic_add(ours, 0, sem="acquire", scope="sys")
            spins = 0
            stop = 0
            while (seen < turn) & (stop == 0):
                seen = tl.atomic_add(ours, 0, sem="acquire", scope="sys")
                spins += 1
                if spins % 256 == 0:  # the word lies in host memory: looking costs a trip over PCIe
                    stop = tl.load(abort, volatile=True)
    tl.debug_barrier()
    total = tl.zeros([block], dtype=tl.float32)
    for peer in tl.static_range(world):
        source = tl.load(buffers + peer).to(tl.pointer_type(tl.bfloat16)) + half
        total += tl.load(source + at, cache_modifier=".cv").to(tl.float32)
    tl.store(out + at, total.to(tl.bfloat16))
    tl.store(sequence + part, turn)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, passed by value."""

    _fields_ = [("reserved", ctypes.c_byte * 64)]


class DeviceMemory:
    """Memory of our own beside torch's allocator, so that a handle opens exactly it; addresses stay for life."""

    driver = ctypes.CDLL("libcuda.so.1")

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))
        self.clear()

    def clear(self) -> None:
        self._call("cuMemsetD8_v2", self.address, ctypes.c_ubyte(0), ctypes.c_size_t(self.size))

    def handle(self) -> bytes:
        handle = IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        return bytes(handle)

    @classmethod
    def open(cls, handle: bytes) -> int:
        """Map a peer's memory into this process, on this process's device."""
        address = ctypes.c_uint64()
        lazy_peer_access = ctypes.c_uint(1)
        cls._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), IpcHandle.from_buffer_copy(handle), lazy_peer_access)
        return address.value

    @classmethod
    def close(cls, address: int) -> None:
        cls._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    @classmethod
    def _call(cls, name: str, *arguments: Any) -> None:
        code = getattr(cls.driver, name)(*arguments)
        assert code == 0, f"{name} failed with {code}"


class Rank:
    """One process's half: symmetric memory, the table of peers, the graph."""

    def __init__(self, rank: int, world: int, reduces: int) -> None:
        torch.cuda.set_device(rank)
        self.rank, self.world, self.reduces = rank, world, reduces
        torch.zeros(1, device="cuda")  # makes the context current
        self.buffer = DeviceMemory(2 * 2 * ELEMENTS)
        self.signal = DeviceMemory(4 * world * BLOCKS)
        self.sequence = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
        self.tables = torch.zeros(2, world, dtype=torch.int64, device="cuda")
        self.abort = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.x = torch.zeros(ELEMENTS, dtype=torch.bfloat16, device="cuda")
        self.out = torch.zeros(reduces, ELEMENTS, dtype=torch.bfloat16, device="cuda")
        self.stream = torch.cuda.Stream()
        self.opened: list[Any] = [None] * world

    def handles(self) -> Any:
        return [self.buffer.handle(), self.signal.handle()]

    def join(self, everyone: list[Any]) -> None:
        """Open the peers' memory and rewrite the table; counters, signals and the abort word start anew."""
        addresses = torch.zeros(2, self.world, dtype=torch.int64)
        for peer, handles in enumerate(everyone):
            if peer == self.rank:
                addresses[:, peer] = torch.tensor([self.buffer.address.value, self.signal.address.value])
            else:
                addresses[:, peer] = torch.tensor(self._peer(peer, handles))
        self.signal.clear()
        self.sequence.zero_()
        self.abort.zero_()
        self.tables.copy_(addresses)
        torch.cuda.synchronize()

    def _peer(self, peer: int, handles: Any) -> list[int]:
        """Addresses of a peer's memory; a peer that stayed is not opened twice."""
        if self.opened[peer] is None or self.opened[peer][0] != handles:
            if self.opened[peer] is not None:
                for address in self.opened[peer][1]:
                    DeviceMemory.close(address)
            self.opened[peer] = (handles, [DeviceMemory.open(handle) for handle in handles])
        addresses: list[int] = self.opened[peer][1]
        return addresses

    def capture(self) -> None:
        """Capture ``reduces`` dependent all-reduces; every peer in the table is ourselves, so nobody is signalled."""
        self.abort.fill_(1)
        own = torch.tensor([[self.buffer.address.value], [self.signal.address.value]])
        self.tables.copy_(own.expand(2, self.world))
        with torch.cuda.stream(self.stream):
            self._step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._step()
        torch.cuda.synchronize()

    def _step(self) -> None:
        source = self.x
        for index in range(self.reduces):
            one_shot[(BLOCKS,)](
                source, self.out[index], self.tables[0], self.tables[1], self.sequence, self.abort, ELEMENTS,
                self.rank, self.world, BLOCKS, BLOCK, num_warps=8,
            )  # fmt: skip
            source = self.out[index] / self.world

    def replay(self, value: float) -> bool:
        """One replay with ``value`` + rank as input; returns whether the last sum is right on every element."""
        self.x.fill_(value + self.rank)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self.graph.replay()
        self.stream.synchronize()
        expected = sum(value + peer for peer in range(self.world))
        return bool((self.out[-1].float() - expected).abs().max() <= 0.02 * abs(expected))


def work(rank: int, world: int, reduces: int, pipe: Connection) -> None:
    """A rank process: obeys ``join``, ``check``, ``run`` (replay until aborted) and ``time``."""
    me = Rank(rank, world, reduces)
    me.capture()
    pipe.send(("handles", me.handles()))
    aborted = threading.Event()
    while True:
        command, argument = pipe.recv()
        if command == "join":
            me.join(argument)
            aborted.clear()
            pipe.send(("joined", me.tables.data_ptr()))
        elif command == "check":
            pipe.send(("checked", all(me.replay(value) for value in (1.0, 3.0, 8.0))))
        elif command == "run":
            threading.Thread(target=_wait_abort, args=(pipe, me, aborted), daemon=True).start()
            pipe.send(("running", None))
            while not aborted.is_set():
                with torch.cuda.stream(me.stream):
                    me.graph.replay()
                me.stream.synchronize()
            idle = time.perf_counter()
            pipe.send(("idle", (idle - me.aborted_at, torch.ones(8, device="cuda").sum().item() == 8)))  # type: ignore[attr-defined]
        elif command == "time":
            pipe.send(("timed", _time(me)))
        else:
            return


def _wait_abort(pipe: Connection, me: Rank, aborted: threading.Event) -> None:
    """The thread outside the device stream: sets the word while the main thread waits for the stream."""
    command, _ = pipe.recv()
    assert command == "abort"
    me.aborted_at = time.perf_counter()  # type: ignore[attr-defined]
    aborted.set()
    me.abort.fill_(1)


def _time(me: Rank) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(30):
        with torch.cuda.stream(me.stream):
            start.record()
            me.graph.replay()
            end.record()
        me.stream.synchronize()
        times.append(start.elapsed_time(end) * 1000 / me.reduces)
    return float(statistics.median(times))


class Group:
    """The driver: starts ranks, kills one, lets the survivors go and brings in a new one."""

    def __init__(self, world: int, reduces: int) -> None:
        self.world, self.reduces = world, reduces
        self.context = mp.get_context("spawn")
        self.processes: list[Any] = [None] * world
        self.pipes: list[Any] = [None] * world
        self.known: list[Any] = [None] * world
        for rank in range(world):
            self.start(rank)

    def start(self, rank: int) -> None:
        ours, theirs = self.context.Pipe()
        self.processes[rank] = self.context.Process(target=work, args=(rank, self.world, self.reduces, theirs))
        self.processes[rank].start()
        theirs.close()
        self.pipes[rank] = ours

    def ask(self, command: str, argument: Any = None, skip: int = -1) -> list[Any]:
        ranks = [rank for rank in range(self.world) if rank != skip]
        for rank in ranks:
            self.pipes[rank].send((command, argument))
        return [self.answer(rank) for rank in ranks]

    def answer(self, rank: int, limit_s: float = 120) -> Any:
        assert self.pipes[rank].poll(limit_s), f"rank {rank} is silent: its stream did not become idle"
        return self.pipes[rank].recv()[1]

    def form(self, fresh: list[int]) -> None:
        for rank in fresh:
            self.known[rank] = self.answer(rank)
        self.ask("join", self.known)

    def kill_one(self, victim: int) -> tuple[float, bool]:
        """Kill ``victim`` in the middle of replays; returns the slowest survivor's abort-to-idle time."""
        self.ask("run")
        time.sleep(0.5)
        os.kill(self.processes[victim].pid, signal.SIGKILL)
        self.processes[victim].join()
        time.sleep(0.3)
        idle = self.ask("abort", skip=victim)
        return max(seconds for seconds, _ in idle), all(alive for _, alive in idle)


def main() -> None:
    """Run the proof and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reduces", type=int, default=64)
    options = parser.parse_args()
    world = torch.cuda.device_count()
    group = Group(world, options.reduces)
    group.form(list(range(world)))
    right = all(group.ask("check"))
    before = max(group.ask("time"))
    idle, alive, again, reformed = [], [], [], []
    for turn in range(options.rounds):
        victim = turn % world
        seconds, lives = group.kill_one(victim)
        idle.append(seconds)
        alive.append(lives)
        group.start(victim)
        fresh = group.answer(victim)
        group.known[victim] = fresh
        began = time.perf_counter()
        group.ask("join", group.known)
        reformed.append(time.perf_counter() - began)
        again.append(all(group.ask("check")))
        print(
            f"round {turn}: rank {victim} killed, idle {seconds * 1e3:.2f} ms after the word, right again {again[-1]}"
        )
    after = max(group.ask("time"))
    for pipe in group.pipes:
        pipe.send(("stop", None))
    for process in group.processes:
        process.join()
    figures = {
        "card": torch.cuda.get_device_name(0),
        "world": world,
        "right_before": right,
        "right_after_every_round": all(again),
        "contexts_lived": all(alive),
        "abort_to_idle_ms_max": round(max(idle) * 1e3, 3),
        "join_s_max": round(max(reformed), 3),
        "all_reduce_512KiB_us": round(before, 2),
        "all_reduce_512KiB_us_after": round(after, 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
