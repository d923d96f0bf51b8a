"""Computes plans: ``launch`` starts a step and returns a handle, ``collect`` turns the handle into the Result frame.

Between them nothing waits for the device and nothing is read from it. Weights, cache, slots and inputs keep their
addresses over steps and epochs; per step only the inputs' contents change. On the CPU a launched step is finished; on a
GPU the next one may be launched before it is collected, and decode steps are replayed from graphs.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from bireme.wire.plan import Logprobs, Plan, Result, Row, pack_ids
from bireme_worker.models.bert import Encoder
from bireme_worker.models.kv_cache import BLOCK_SIZE, KVCache
from bireme_worker.models.layers.flattening import LEAST_CONTEXT, LEAST_TOKENS, is_able
from bireme_worker.models.lora import AdapterStep
from bireme_worker.models.page_lock import LEAST_BYTES, PageLock
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel
from bireme_worker.models.transfer import upload
from bireme_worker.models.uploads import Uploads
from bireme_worker.parallel.communicator import Communicator, SoloCommunicator
from bireme_worker.parallel.gate import EpochGate
from bireme_worker.profiling.marks import mark, marked
from bireme_worker.profiling.parts import Part
from bireme_worker.rank.graphs import DecodeGraphs, padded, telling_sizes
from bireme_worker.rank.inputs import Inputs, Shape
from bireme_worker.rank.slots import Slots
from bireme_worker.sampling.draw import Draw
from bireme_worker.sampling.logprobs import Report
from bireme_worker.sampling.prompt import prompt_logprobs, score, with_prompt
from bireme_worker.sampling.sampler import Sampled, sample

if TYPE_CHECKING:
    from bireme_worker.parallel.exchange import Exchange

MAX_UNREAD: Final = 64
"""Steps whose sampled ids may lie unread in the token connection of stage 0; far more than any depth of plans."""
WARM_UP: Final = Row(slot=0, start=0, count=1, ids=pack_ids([0]), blocks=(0,), output=0)
PROMPT: Final = Row(slot=0, start=0, count=2, ids=pack_ids([0, 0]), blocks=(), output=0)
LONG_PROMPT: Final = Row(
    slot=0,
    start=LEAST_CONTEXT - LEAST_TOKENS,
    count=LEAST_TOKENS,
    ids=pack_ids([0] * LEAST_TOKENS),
    blocks=(),
    output=0,
)
"""One that is gathered, where any is."""


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

    def __init__(
        self,
        model: StageModel,
        cache: KVCache,
        slots: Slots,
        inputs: Inputs,
        progress: Progress,
        *,
        links: "Exchange | None" = None,
    ) -> None:
        """``links``: a GPU's open memory, where the group has more ranks than this one."""
        self.model = model
        self.links = links
        self._adapters = _adapters_of(model)
        self.cache = cache
        self.slots = slots
        self.inputs = inputs
        self._progress = progress
        self._unread: deque[tuple[int, ...]] = deque()
        self._communicator: Communicator | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def _is_whole(self) -> bool:
        """Whether this stage is the only one."""
        return self.model.stage.embeds and self.model.stage.samples

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = self.inputs.ids.device
        return device

    def compile_ahead(self) -> int:
        """Compile what decode steps and a prompt want, side by side. Before the first ``capture``; returns how many."""
        if not self._captures:
            return 0
        from bireme_worker.kernels.ahead import compile_ahead  # noqa: PLC0415  Triton is there only beside a GPU

        communicator, self._communicator = self._communicator, self._alone()
        with torch.inference_mode():
            count = compile_ahead(self._try_steps)
        self._communicator = communicator
        return count

    def _try_steps(self) -> None:
        self._compute(self.inputs.fill((PROMPT,), self.slots))
        longest = self.slots.block_table.shape[1] * BLOCK_SIZE
        room = longest >= LEAST_CONTEXT and len(self.inputs.ids) >= LEAST_TOKENS
        if room and is_able(self.device, self.model.dtype):
            self._compute(self.inputs.fill((LONG_PROMPT,), self.slots))
        self.inputs.fill((), self.slots)
        for size in telling_sizes(self.slots.count):
            self._compute(padded(size))

    @property
    def _captures(self) -> bool:
        return self.device.type == "cuda" and not isinstance(self.model, Encoder)

    def capture(self) -> None:
        """Capture decode steps, where the device has graphs. Between steps.

        The first time every step is also run, alone: no epoch has begun, so a group's transfers go nowhere.
        """
        if not self._captures:
            return
        is_first, communicator = self._graphs is None, self._communicator
        self._graphs = self._graphs or DecodeGraphs(self._compute, self.slots.count)
        if is_first:
            self._communicator = self._alone()
        with torch.inference_mode():
            self.inputs.fill((), self.slots)
            self._graphs.capture(run=is_first)
        self._communicator = communicator

    def _alone(self) -> Communicator:
        """Stands in for an epoch's communicator while steps are captured."""
        gate = EpochGate(0)
        if self.links is None:
            return SoloCommunicator(gate)
        from bireme_worker.parallel.device_communicator import alone  # noqa: PLC0415  Triton is there only beside a GPU

        return alone(gate, self.links)

    def exchange(self, model: StageModel, locked: PageLock | None = None) -> StageModel:
        """Compute with other weights of the same shapes from the next launch on; returns the old ones.

        On the CPU only the weights' addresses change, and everything derived from them or their configuration comes
        with them. A GPU has no room for two models and its graphs know addresses: there the values are copied, fastest
        those that are ``locked``.
        """
        old = self.model
        if self.device.type == "cpu":
            self.model, self._adapters = model, _adapters_of(model)
            return old
        pairs = list(zip(old.weights(), model.weights(), strict=True))
        with Uploads(self.device) as uploads:
            for mine, new in pairs:
                for kept, value in zip(mine.tensors(), new.tensors(), strict=True):
                    _send(value, kept, uploads, locked)
        if model.config == old.config:
            return model
        for mine, new in pairs:
            mine.tensor, new.tensor = new.tensor, mine.tensor
            mine.quantized, new.quantized = new.quantized, mine.quantized
            new.low_rank = mine.low_rank
        model.place(self.device)
        self.model = model
        self.capture()
        return old

    def begin(self, communicator: Communicator) -> None:
        """Start an epoch: no request is known any more."""
        self._communicator = marked(communicator)
        self._unread.clear()
        self.slots.reset()

    def remark(self) -> None:
        """Somebody listens for marks from now on, or nobody any more. Between steps."""
        if self._communicator is not None:
            self._communicator = marked(self._communicator)

    def end(self) -> None:
        """Let go of the epoch's communicator. Afterwards the device is idle."""
        self._communicator = None
        if self.links is not None:
            torch.cuda.synchronize(self.device)
            self.links.leave()

    def warm_up(self, epoch: int) -> None:
        """One padded step through all stages: every connection is used once before the epoch serves."""
        self.collect(self.launch(Plan(epoch=epoch, step=-1, rows=(WARM_UP,))))
        if self.model.stage.embeds and not self._is_whole:
            self._read_tokens_of(frozenset({0}))

    def launch(self, plan: Plan) -> Handle:
        """Start the step that ``plan`` describes.

        Raises:
            EpochEnded: the epoch ended meanwhile.
            BadPlan: the plan does not fit this rank.
        """
        with torch.inference_mode(), mark(Part.LAUNCH):
            shape = self._take_in(plan)
            self._await_tokens(shape)
            self._choose_adapters(plan.rows, shape)
            sampled = self._step(shape)
            return Handle(plan, shape, sampled) if self.device.type == "cpu" else _fetched(plan, shape, sampled)

    def collect(self, handle: Handle) -> Result:
        """Wait for the step and return what it drew (ids are empty on stages that do not sample)."""
        with mark(Part.COLLECT):
            return self._collect(handle)

    def _take_in(self, plan: Plan) -> Shape:
        """What is prepared on the host."""
        with mark(Part.PLAN):
            for admit in plan.admits:
                self.slots.admit(admit)
            fresh = self.slots.append_blocks(plan.rows)
            if fresh:
                self.cache.clear(upload(np.array(fresh), self.device))
            return self.inputs.fill(plan.rows, self.slots, plan.masks, plan.targets)

    def _collect(self, handle: Handle) -> Result:
        plan, sampled = handle.plan, handle.sampled
        if handle.ready is not None:
            handle.ready.synchronize()
        if sampled is None:
            return Result(epoch=plan.epoch, step=plan.step, ids=b"")
        ids = sampled.ids.tolist()
        bad = tuple(row for row, flag in enumerate(sampled.bad.tolist()) if flag)
        logprobs = _logprobs(handle.shape.draw, sampled.report)
        vectors = () if sampled.vectors is None else tuple(row.tobytes() for row in sampled.vectors.numpy())
        prompt = prompt_logprobs(handle.shape.scored, sampled.prompt)
        return Result(plan.epoch, plan.step, pack_ids(ids), bad, logprobs, vectors, prompt)

    def _choose_adapters(self, rows: tuple[Row, ...], shape: Shape) -> None:
        if self._adapters is not None:
            slots = self.inputs.token_slots[: shape.tokens]
            self._adapters.tokens = self.slots.adapters.index_select(0, slots) if self.slots.adapt(rows) else None

    def _step(self, shape: Shape) -> Sampled | None:
        adapted = self._adapters is not None and self._adapters.tokens is not None
        assert self._communicator is not None, "no epoch has begun"
        if self._graphs is None or adapted or not (self._communicator.captures and self._graphs.fit(shape)):
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
            with mark(Part.EMBED):
                x = model.embed(self.inputs.token_ids(shape, self.slots), communicator)
        else:
            x = torch.empty((shape.tokens, model.config.hidden_size), dtype=model.dtype, device=self.device)
            communicator.recv_hidden(x)
        batch = self.inputs.batch(shape, self.slots)
        with mark(Part.LAYERS):
            x = model.run_layers(x, batch, self.cache, communicator, self._progress)
        if not model.stage.samples:
            communicator.send_hidden(x)
            return None
        if isinstance(model, Encoder):
            return _encoded(model.pool(x, batch, self.inputs.sample_tokens[: shape.draw.rows]))
        prompt = self._score(x, shape, communicator) if shape.scored else None
        sampled = self._sample(x, shape, communicator) if shape.sampled else None
        return sampled if prompt is None else with_prompt(sampled, prompt)

    def _score(self, x: torch.Tensor, shape: Shape, communicator: Communicator) -> Report:
        state = self.slots.sampling_state
        assert state is not None
        return score(x, shape.scored, self.model.logits, state.shard, communicator)

    def _sample(self, x: torch.Tensor, shape: Shape, communicator: Communicator) -> Sampled:
        inputs, state = self.inputs, self.slots.sampling_state
        assert state is not None
        with mark(Part.HEAD):
            logits = self.model.logits(x.index_select(0, inputs.sample_tokens[: shape.draw.rows]))
        rows = inputs.sampling_rows(shape)
        with mark(Part.SAMPLING):
            sampled = sample(logits, rows, state, communicator)
        self.slots.last_sample.index_copy_(0, rows.slots, sampled.ids)
        if not self._is_whole:
            communicator.send_tokens(sampled.ids)
        return sampled

    def _await_tokens(self, shape: Shape) -> None:
        """On stage 0 of several: read sampled ids that this step needs, and remember what this step will sample."""
        if self._is_whole or not self.model.stage.embeds or self.model.config.is_encoder:
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
        slots = upload(np.array(self._unread.popleft()), self.device)
        ids = torch.empty_like(slots)
        self._communicator.recv_tokens(ids)
        self.slots.last_sample.index_copy_(0, slots, ids)


def _send(source: torch.Tensor, target: torch.Tensor, uploads: Uploads, locked: PageLock | None) -> None:
    if locked is not None and locked.holds(source) and target.is_contiguous():
        locked.copy(source, target)
    elif source.nbytes < LEAST_BYTES:
        target.copy_(source)
    else:
        uploads.copy_whole(source, target)


def _adapters_of(model: StageModel) -> AdapterStep | None:
    return next((weight.low_rank.step for weight in model.weights() if weight.low_rank is not None), None)


def _encoded(vectors: torch.Tensor) -> Sampled:
    ids = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
    return Sampled(ids, ~vectors.isfinite().all(dim=-1), None, vectors)


def _fetched(plan: Plan, shape: Shape, sampled: Sampled | None) -> Handle:
    """Send what was drawn to pinned memory of the host, in stream order."""
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    if sampled is not None:
        vectors = None if sampled.vectors is None else _sent(sampled.vectors)
        reports = _sent_report(sampled.report), _sent_report(sampled.prompt)
        sampled = Sampled(_sent(sampled.ids), _sent(sampled.bad), reports[0], vectors, reports[1])
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
