"""Computes plans: ``launch`` starts a step and returns a handle, ``collect`` turns the handle into the Result frame.

Between them nothing waits for the device and nothing is read from it. Weights, cache, slots and inputs keep their
addresses over steps and epochs; per step only the inputs' contents change. On the CPU a launched step is finished; on a
GPU the next one may be launched before it is collected, and decode steps are replayed from graphs.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from bireme.wire.plan import Logprobs, Plan, Result, Row, pack_ids
from bireme_worker.models.kv_cache import KVCache
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel
from bireme_worker.models.transfer import upload
from bireme_worker.parallel.communicator import Communicator, SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.rank.graphs import DecodeGraphs
from bireme_worker.rank.inputs import Inputs, Shape
from bireme_worker.rank.slots import Slots
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.logprobs import Report
from bireme_worker.sampling.sampler import Sampled, sample

MAX_UNREAD: Final = 64
"""Steps whose sampled ids may lie unread in the token connection of stage 0; far more than any depth of plans."""
WARM_UP: Final = Row(slot=0, start=0, count=1, ids=pack_ids([0]), blocks=(0,), output=0)


@dataclass(frozen=True, slots=True)
class Handle:
    """A launched step. ``sampled`` is None on stages that do not sample, or when no row did.

    On a GPU it is on its way to the host, and there when ``ready``.
    """

    plan: Plan
    shape: Shape
    sampled: Sampled | None
    ready: torch.cuda.Event | None = None


class Runner:
    """One rank's computation. ``communicator`` is set for each epoch by ``begin``."""

    def __init__(self, model: StageModel, cache: KVCache, slots: Slots, inputs: Inputs, progress: Progress) -> None:
        self.model = model
        self.cache = cache
        self.slots = slots
        self.inputs = inputs
        self._progress = progress
        self._stages = 1
        self._unread: deque[tuple[int, ...]] = deque()
        self._communicator: Communicator | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = self.inputs.ids.device
        return device

    def capture(self) -> None:
        """Capture decode steps, where the device has graphs and a step is this rank's alone. Between steps."""
        if self.device.type != "cuda" or not (self.model.stage.embeds and self.model.stage.samples):
            return
        gate, communicator = EpochGate(0), self._communicator
        self._communicator = SoloCommunicator(gate)
        self._graphs = self._graphs or DecodeGraphs(self._compute, self.slots.count)
        with torch.inference_mode():
            self.inputs.fill((), self.slots)
            self._graphs.capture()
        self._communicator = communicator
        gate.close()

    def exchange(self, model: StageModel) -> StageModel:
        """Compute with other weights of the same shapes from the next launch on; returns the old ones.

        On the CPU only the weights' addresses change, and everything derived from them or their configuration comes
        with them. A GPU has no room for two models and its graphs know addresses: there the values are copied.
        """
        old = self.model
        if self.device.type == "cpu":
            self.model = model
            return old
        pairs = list(zip(old.weights(), model.weights(), strict=True))
        for mine, new in pairs:
            mine.tensor.copy_(new.tensor)
        if model.config == old.config:
            return model
        for mine, new in pairs:
            mine.tensor, new.tensor = new.tensor, mine.tensor
        model.place(self.device)
        self.model = model
        self.capture()
        return old

    def begin(self, communicator: Communicator, stages: int) -> None:
        """Start an epoch: no request is known any more."""
        self._communicator = communicator
        self._stages = stages
        self._unread.clear()
        self.slots.reset()

    def end(self) -> None:
        """Let go of the epoch's communicator."""
        self._communicator = None

    def warm_up(self, epoch: int) -> None:
        """One padded step through all stages: every connection is used once before the epoch serves."""
        self.collect(self.launch(Plan(epoch=epoch, step=-1, rows=(WARM_UP,))))
        if self._stages > 1 and self.model.stage.embeds:
            self._read_tokens_of(frozenset({0}))

    def launch(self, plan: Plan) -> Handle:
        """Start the step that ``plan`` describes.

        Raises:
            EpochEnded: the epoch ended meanwhile.
            BadPlan: the plan does not fit this rank.
        """
        with torch.inference_mode():
            for admit in plan.admits:
                self.slots.admit(admit)
            fresh = self.slots.append_blocks(plan.rows)
            if fresh:
                self.cache.clear(upload(np.array(fresh), self.device))
            shape = self.inputs.fill(plan.rows, self.slots)
            self._await_tokens(shape)
            sampled = self._step(shape)
            return Handle(plan, shape, sampled) if self.device.type == "cpu" else _fetched(plan, shape, sampled)

    def collect(self, handle: Handle) -> Result:
        """Wait for the step and return what it drew (ids are empty on stages that do not sample)."""
        plan, sampled = handle.plan, handle.sampled
        if handle.ready is not None:
            handle.ready.synchronize()
        if sampled is None:
            return Result(epoch=plan.epoch, step=plan.step, ids=b"")
        ids = sampled.ids.tolist()
        bad = tuple(row for row, flag in enumerate(sampled.bad.tolist()) if flag)
        logprobs = _logprobs(handle.shape.draw, sampled.report)
        return Result(epoch=plan.epoch, step=plan.step, ids=pack_ids(ids), bad=bad, logprobs=logprobs)

    def _step(self, shape: Shape) -> Sampled | None:
        if self._graphs is None or not self._graphs.fit(shape):
            return self._compute(shape)
        self._progress.layers += self.model.stage.count
        return self._graphs.replay(shape)

    def _compute(self, shape: Shape) -> Sampled | None:
        """Everything that a device does in a step; this is what a graph captures."""
        communicator = self._communicator
        assert communicator is not None, "no epoch has begun"
        if not shape.rows:
            return None
        model = self.model
        if model.stage.embeds:
            x = model.embed(self.inputs.token_ids(shape, self.slots), communicator)
        else:
            x = torch.empty((shape.tokens, model.config.hidden_size), dtype=model.dtype, device=self.device)
            communicator.recv_hidden(x)
        x = model.run_layers(x, self.inputs.batch(shape, self.slots), self.cache, communicator, self._progress)
        if not model.stage.samples:
            communicator.send_hidden(x)
            return None
        return self._sample(x, shape, communicator) if shape.sampled else None

    def _sample(self, x: torch.Tensor, shape: Shape, communicator: Communicator) -> Sampled:
        inputs, state = self.inputs, self.slots.sampling_state
        assert state is not None
        logits = self.model.logits(x.index_select(0, inputs.sample_tokens[: shape.draw.rows]))
        rows = inputs.sampling_rows(shape)
        sampled = sample(logits, rows, state, communicator)
        self.slots.last_sample.index_copy_(0, rows.slots, sampled.ids)
        if self._stages > 1:
            communicator.send_tokens(sampled.ids)
        return sampled

    def _await_tokens(self, shape: Shape) -> None:
        """On stage 0 of several: read sampled ids that this step needs, and remember what this step will sample."""
        if self._stages == 1 or not self.model.stage.embeds:
            return
        self._read_tokens_of(shape.waits_for)
        if shape.sampled:
            self._unread.append(shape.sampled)
            while len(self._unread) > MAX_UNREAD:
                self._read_tokens()

    def _read_tokens_of(self, slots: frozenset[int]) -> None:
        while any(not slots.isdisjoint(unread) for unread in self._unread):
            self._read_tokens()

    def _read_tokens(self) -> None:
        assert self._communicator is not None
        slots = torch.tensor(self._unread.popleft(), device=self.device)
        ids = torch.empty_like(slots)
        self._communicator.recv_tokens(ids)
        self.slots.last_sample.index_copy_(0, slots, ids)


def _fetched(plan: Plan, shape: Shape, sampled: Sampled | None) -> Handle:
    """Send what was drawn to pinned memory of the host, in stream order."""
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    if sampled is not None:
        sampled = Sampled(_sent(sampled.ids), _sent(sampled.bad), _sent_report(sampled.report))
    ready.record()
    return Handle(plan, shape, sampled, ready)


def _sent(values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", non_blocking=True)


def _sent_report(report: Report | None) -> Report | None:
    return None if report is None else Report(_sent(report.chosen), _sent(report.values), _sent(report.ids))


def _logprobs(draw: Draw, report: Report | None) -> tuple[Logprobs | None, ...]:
    if report is None:
        return ()
    chosen, ids, values = report.chosen.tolist(), report.ids.tolist(), report.values.tolist()
    reports: list[Logprobs | None] = [None] * draw.rows
    for place, (row, top) in enumerate(zip(draw.reported, draw.tops, strict=True)):
        reports[row] = Logprobs(chosen[place], tuple(zip(ids[place][:top], values[place][:top], strict=True)))
    return tuple(reports)
