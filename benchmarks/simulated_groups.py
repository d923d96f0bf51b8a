"""Groups that exist on paper, on a clock that only moves when nothing else is left to do: deterministic and fast.

A group does what a worker's scheduler does: slots, a queue, chunked prefill beside decode under a token budget, a
prefix cache of bounded size. A step's time follows the roofline of an 8B model in bf16 on one H100: weights are read
once (8 ms with overhead), prefill is compute (20,000 tokens/s), attention reads the active KV (2 MiB per block of 16
tokens), and each row costs a little.
"""

import asyncio
import selectors
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bireme.wire.requests import Limits
from bireme.wire.routes import Route
from bireme.wire.state import ReloadState, StateDocument
from bireme_router.accounts import Lease

KV_BLOCKS: Final = 24_576
BLOCK: Final = 16


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeping costs nothing: time jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jump(self._advance))

    def time(self) -> float:
        return self.now

    def _advance(self, seconds: float) -> None:
        self.now += seconds


class _Jump(selectors.SelectSelector):
    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self._advance(timeout)
        return super().select(0)


@dataclass(frozen=True)
class Curve:
    """What a step takes, in seconds and tokens."""

    base_s: float = 0.008
    prefill_per_s: float = 20_000.0
    block_s: float = 0.7e-6
    row_s: float = 20e-6
    budget: int = 2048

    def step_s(self, prefill: int, blocks: float, rows: int) -> float:
        """One step's time."""
        return self.base_s + prefill / self.prefill_per_s + blocks * self.block_s + rows * self.row_s


@dataclass(eq=False)
class Call:
    """One request inside a group."""

    prefix: int
    shared: int
    prompt: int
    output: int
    lease: Lease
    done: "asyncio.Future[None]"
    cached: int = 0
    computed: int = 0
    tokens: int = 0
    first_at: float = field(default=float("inf"))


class SimulatedGroup:
    """One group of ``slots`` slots; ``queue`` more requests may wait."""

    def __init__(self, index: int, curve: Curve, slots: int = 64, queue: int = 256) -> None:
        self.index = index
        self.slots = slots
        self.route = Route(f"g{index}", index, f"pod-{index}", 1, f"http://{index}", f"http://{index}", "")
        self._limits = Limits(8192, slots, queue)
        self._curve = curve
        self._waiting: deque[Call] = deque()
        self._running: list[Call] = []
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._wake = asyncio.Event()

    @property
    def load(self) -> int:
        """Requests inside."""
        return len(self._waiting) + len(self._running)

    def submit(self, call: Call) -> None:
        """A request arrives."""
        self._waiting.append(call)
        self._wake.set()

    async def run(self) -> None:
        """Step while there is work."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self.load:
                self._wake.clear()
                await self._wake.wait()
            self._admit()
            chunks = self._chunks()
            blocks = sum((call.computed + call.tokens) / BLOCK for call in self._running)
            await asyncio.sleep(self._curve.step_s(sum(chunks.values()), blocks, len(self._running)))
            self._finish_step(chunks, clock())

    def document(self, seq: int) -> StateDocument:
        """What its leader says."""
        queued = sum(call.prompt - call.cached - call.computed for call in (*self._waiting, *self._running))
        values: dict[str, Any] = {
            "v": 1, "seq": seq, "group": self.route.group, "stage": 0, "incarnation": 1, "boot": "b", "epoch": 1,
            "state": "Serving", "reason": "None", "message": "", "retry_after_s": 0.0, "revision": "r",
            "model_revision": "m", "generation": 0, "reload": ReloadState(), "running": len(self._running),
            "waiting": len(self._waiting), "queued_prefill_tokens": max(queued, 0), "kv_blocks_used": 0,
            "kv_blocks": KV_BLOCKS, "block_size": BLOCK, "step": seq, "step_age_s": 0.0, "draining": False,
            "limits": self._limits, "stages": (),
        }  # fmt: skip
        return StateDocument(**values)

    def _admit(self) -> None:
        held = sum(call.prompt + call.output for call in self._running)
        while self._waiting and len(self._running) < self.slots:
            call = self._waiting[0]
            held += call.prompt + call.output
            if held > KV_BLOCKS * BLOCK and self._running:
                return
            self._running.append(self._waiting.popleft())
            call.computed = call.cached = self._hit(call)

    def _hit(self, call: Call) -> int:
        hit = min(self._cache.get(call.prefix, 0), call.shared)
        self._cache[call.prefix] = call.shared
        self._cache.move_to_end(call.prefix)
        while sum(self._cache.values()) > KV_BLOCKS * BLOCK // 2:
            self._cache.popitem(last=False)
        return hit

    def _chunks(self) -> dict[Call, int]:
        """Prefill of this step: what the budget leaves after one row per decoding request, oldest first."""
        decoding = sum(call.computed >= call.prompt for call in self._running)
        budget = self._curve.budget - decoding
        chunks: dict[Call, int] = {}
        for call in self._running:
            if call.computed < call.prompt and budget > 0:
                chunks[call] = min(call.prompt - call.computed, budget)
                budget -= chunks[call]
        return chunks

    def _finish_step(self, chunks: dict[Call, int], now: float) -> None:
        for call in self._running:
            if call in chunks:
                call.computed += chunks[call]
                if call.computed < call.prompt:
                    continue
            elif call.computed < call.prompt:
                continue
            if not call.tokens:
                call.first_at = now
            call.tokens += 1
            call.lease.emitted(1, now)
            if call.tokens >= call.output:
                call.done.set_result(None)
        self._running = [call for call in self._running if call.tokens < call.output]
