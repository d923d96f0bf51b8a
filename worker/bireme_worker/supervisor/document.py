"""The state document of a stage, and who waits for its changes.

``seq`` grows with each change of anything but ages and step counters: those grow all the time and come with each
interval anyway.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import msgspec

from bireme.wire import WIRE_VERSION
from bireme.wire.control import Checkpoint, RankBeat, Standing
from bireme.wire.requests import Limits
from bireme.wire.state import RankState, ReloadState, StageState, StateDocument
from bireme_worker.coordinator.messages import Status
from bireme_worker.identity import Identity

BLOCK_SIZE = 16
"""Tokens per KV block."""


def rank_states(beats: Iterable[RankBeat], ages: dict[int, float]) -> tuple[RankState, ...]:
    """Ranks as documents show them; ``ages`` are their step ages where known."""
    return tuple(
        RankState(b.rank, b.alive, b.pid, b.phase, b.step, round(ages.get(b.rank, 0.0), 3), b.loads) for b in beats
    )


def build(
    identity: Identity,
    *,
    boot: str,
    standing: Standing,
    stages: tuple[StageState, ...],
    status: Status | None,
    checkpoint: Checkpoint,
    reload: ReloadState,
    draining: bool,
) -> StateDocument:
    """The document without its ``seq``."""
    work = status or Status(0, 0, 0, 0, 0, 0, 0, 0.0, False, 0, 0, 0, {})
    asked = Limits(identity.max_model_length, identity.max_running_requests, identity.max_queued_requests)
    return StateDocument(
        v=WIRE_VERSION,
        seq=0,
        group=identity.group,
        stage=identity.stage,
        incarnation=identity.incarnation,
        boot=boot,
        epoch=standing.epoch,
        state=standing.state,
        reason=standing.reason,
        message=standing.message,
        retry_after_s=standing.retry_after_s,
        revision=identity.revision,
        model_revision=checkpoint.model_revision,
        generation=checkpoint.generation,
        reload=reload,
        running=work.running,
        waiting=work.waiting,
        queued_prefill_tokens=work.queued_prefill_tokens,
        kv_blocks_used=work.kv_blocks_used,
        kv_blocks=work.kv_blocks,
        block_size=BLOCK_SIZE,
        step=work.step,
        step_age_s=round(work.step_age_s, 3),
        draining=draining,
        limits=work.limits or asked,
        stages=stages,
        source=checkpoint.source,
    )


class Board:
    """Where the newest document hangs. ``builder`` makes one from the facts of this moment."""

    def __init__(self, builder: Callable[[], StateDocument]) -> None:
        self._builder = builder
        self._seq = 0
        self._essence: StateDocument | None = None
        self._changed = asyncio.Event()

    def refresh(self) -> StateDocument:
        """Build the document; raise ``seq`` and wake the waiting if something changed."""
        document = self._builder()
        essence = _essence(document)
        if essence != self._essence:
            self._essence = essence
            self._seq += 1
            self._changed.set()
            self._changed = asyncio.Event()
        return msgspec.structs.replace(document, seq=self._seq)

    async def changed_since(self, seq: int, limit_s: float) -> None:
        """Return when ``seq`` is no longer the newest, at the latest after ``limit_s``."""
        if self._seq == seq:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._changed.wait()


def _essence(document: StateDocument) -> StateDocument:
    stages = tuple(
        msgspec.structs.replace(
            stage,
            last_heard_s=0.0,
            ranks=tuple(msgspec.structs.replace(rank, step=0, step_age_s=0.0) for rank in stage.ranks),
        )
        for stage in document.stages
    )
    return msgspec.structs.replace(document, seq=0, step=0, step_age_s=0.0, stages=stages)
