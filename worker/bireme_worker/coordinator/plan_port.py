"""Where ranks attach: every plan goes to every rank of every stage, in the same order; results come from one of them.

A connection belongs to one epoch. The loss of one ends the epoch for all; ranks dial again for the next. A rank may be
faster than the supervisor's Begin, so connections of a later epoch wait here.
"""

import asyncio
import logging
from typing import Final, Protocol

from bireme.wire.control import Address
from bireme.wire.errors import Garbled, WireError
from bireme.wire.frames import Channel
from bireme.wire.plan import Attach, Commit, Plan, PlanKinds, Result, plan_codec
from bireme_worker.coordinator.conversations import each_in_a_task
from bireme_worker.engine.results import WrongResult

log = logging.getLogger(__name__)

HANDSHAKE_LIMIT_S: Final = 5.0

PlanChannel = Channel[PlanKinds]


class PlanListener(Protocol):
    """Who hears of the ranks of the open epoch."""

    def ranks_attached(self) -> None:
        """Every rank of the epoch is here."""

    def rank_lost(self, stage: int, rank: int) -> None:
        """A rank's connection broke."""

    def take_result(self, result: Result) -> None:
        """The last stage's rank 0 finished a plan.

        Raises:
            WrongResult: it did not; its connection is closed.
        """


class PlanPort:
    """Connections of the ranks of a group of ``stages`` × ``tensor``."""

    def __init__(self, token: bytes, stages: int, tensor: int) -> None:
        self._token = token
        self._stages = stages
        self._tensor = tensor
        self._listener: PlanListener | None = None
        self._attached: dict[Attach, PlanChannel] = {}
        self._epoch = 0
        self._lowest = 0
        self._current: list[PlanChannel] = []

    async def listen(self, address: Address, listener: PlanListener) -> asyncio.Server:
        """Bind and accept ranks from now on."""
        self._listener = listener
        return await asyncio.start_server(each_in_a_task(self._converse), address.host, address.port)

    def open(self, epoch: int) -> None:
        """Expect the ranks of this epoch; those of earlier ones are cut off."""
        self._epoch = self._lowest = epoch
        self._cut_off(below=epoch)
        self._count()

    def close(self) -> None:
        """The epoch is over."""
        self._lowest = self._epoch + 1
        self._epoch = 0
        self._current = []
        self._cut_off(below=self._lowest)

    def send(self, plan: Plan | Commit) -> None:
        """Queue a plan or a commit to every rank of the open epoch."""
        frame = plan_codec.frame(plan)
        for channel in self._current:
            channel.send_frame(frame)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel: PlanChannel = Channel(reader, writer, plan_codec)
        attach: Attach | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                await channel.accept(self._token)
                first = await channel.receive()
            attach = self._attach(first, channel)
            while True:
                self._take(attach, await channel.receive())
        except (WireError, WrongResult, TimeoutError) as error:
            log.info("plan connection of %s: %s", attach or "a stranger", error)
        finally:
            channel.abort()
            if attach is not None:
                self._detach(attach)

    def _attach(self, first: object, channel: PlanChannel) -> Attach:
        if not isinstance(first, Attach):
            raise Garbled(f"expected Attach, got {type(first).__name__}")
        if not (0 <= first.stage < self._stages and 0 <= first.rank < self._tensor):
            raise Garbled(f"{first}: the group has {self._stages} stages of {self._tensor} ranks")
        if first.epoch < self._lowest or first in self._attached:
            raise Garbled(f"{first}: epoch {self._lowest} or later is expected, and each rank once")
        self._attached[first] = channel
        if first.epoch == self._epoch:
            self._count()
        return first

    def _count(self) -> None:
        current = [channel for attach, channel in self._attached.items() if attach.epoch == self._epoch]
        if len(current) == self._stages * self._tensor and self._listener is not None:
            self._current = current
            self._listener.ranks_attached()

    def _take(self, attach: Attach, message: object) -> None:
        if not isinstance(message, Result) or (attach.stage, attach.rank) != (self._stages - 1, 0):
            raise Garbled(f"stage {attach.stage} rank {attach.rank} sent {type(message).__name__}")
        if message.epoch == attach.epoch == self._epoch and self._listener is not None:
            self._listener.take_result(message)

    def _detach(self, attach: Attach) -> None:
        self._attached.pop(attach, None)
        if attach.epoch == self._epoch and self._listener is not None:
            self._listener.rank_lost(attach.stage, attach.rank)

    def _cut_off(self, below: int) -> None:
        for attach in [attach for attach in self._attached if attach.epoch < below]:
            self._attached.pop(attach).abort()
