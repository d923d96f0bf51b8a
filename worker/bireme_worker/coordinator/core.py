"""The coordinator without its sockets: requests in, plans out, results in, tokens out, under the supervisor's orders.

An epoch runs from Begin to Finish. At its end whoever has a journal is handed over and forgotten; the others wait here
and are computed anew in the next epoch. Nothing here blocks or waits.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Protocol

from bireme.names import Admission, Reason
from bireme.wire.errors import Garbled
from bireme.wire.plan import Commit, Plan, Result
from bireme.wire.requests import Accepted, Allow, Refused, Submit
from bireme_worker.coordinator.book import Book
from bireme_worker.coordinator.messages import (
    Abort,
    Begin,
    Begun,
    CoordinatorKinds,
    Drain,
    Finish,
    PlanLost,
    Quiet,
    Reload,
    Serve,
    Swap,
    Undrain,
)
from bireme_worker.coordinator.progress import Progress
from bireme_worker.coordinator.quiescence import Quiescence
from bireme_worker.coordinator.request_port import Client
from bireme_worker.coordinator.standing import (
    DRAINING,
    FORMING,
    OTHER_TEXT,
    STARTING,
    TAKING_WORK,
    Standing,
    Weights,
    serving_message,
)
from bireme_worker.engine.admission import Capacity, Refusal, refuse, refuse_full, too_long, wrong_mask
from bireme_worker.engine.results import Emission
from bireme_worker.engine.scheduler import Scheduler
from bireme_worker.engine.sequence import Sequence, finish_reason

log = logging.getLogger(__name__)


class Ranks(Protocol):
    """The plan port, as far as the core needs it."""

    def open(self, epoch: int) -> None:
        """Expect the ranks of an epoch."""

    def close(self) -> None:
        """Cut them off."""

    def send(self, plan: Plan | Commit) -> None:
        """Send to all of them."""


class Core:
    """``tell`` reaches the supervisor; ``clock`` is monotonic seconds; ``soon`` calls back when this event is done."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        capacity: Capacity,
        weights: Weights,
        ranks: Ranks,
        tell: Callable[[CoordinatorKinds], None],
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._scheduler = scheduler
        self._capacity = capacity
        self._weights = weights
        self._ranks = ranks
        self._tell = tell
        self._clock = clock
        self._soon = soon
        self._book = Book()
        self._progress = Progress(scheduler, self._book)
        self._standing = STARTING
        self._epoch = 0
        self._whole = False
        self._drain_by: float | None = None
        self._pump_is_due = False
        self._quiescence: Quiescence | None = None

    # -- the supervisor's orders

    def obey(self, message: CoordinatorKinds, text: str = "") -> None:
        """Carry out an order; what belongs to another epoch is dropped.

        ``text`` names the tokenizer of the checkpoint that the order is about.
        """
        match message:
            case Begin():
                self._begin(message, text)
            case Serve(epoch) if epoch == self._epoch and self._whole:
                self._go_on()
                self._stand(TAKING_WORK)
                self._pump()
            case Finish(epoch) if epoch == self._epoch:
                self._finish(Standing(False, message.reason, message.message, message.retry_after_s))
            case Reload(epoch) if epoch == self._epoch and self._standing.serving:
                wait_s = message.deadline_s if message.finish else 0.0
                self._quiescence = Quiescence(message.generation, text, self._clock() + wait_s)
                self._scheduler.holding = True
            case Swap(epoch) if epoch == self._epoch and self._quiescence is not None:
                self._swap(message, self._quiescence.text)
            case Drain(deadline_s):
                self._drain(self._clock() + deadline_s)
            case Undrain():
                self._drain(None)
            case Abort(request_id):
                self._end(self._book.named(request_id), "error", "the request was aborted by an operator")
            case _:
                log.info("no order for now: %s", message)
        self._report()

    @property
    def text(self) -> tuple[str, str]:
        """The checkpoint that is served and the name of its tokenizer."""
        return self._weights.source, self._weights.text

    def _begin(self, begin: Begin, text: str) -> None:
        if self._epoch:
            self._finish(FORMING)
        self._epoch = begin.epoch
        self._whole = False
        self._weights = Weights(begin.model_revision, begin.generation, begin.source, text)
        self._resize(begin.kv_blocks)
        self._scheduler.begin(begin.epoch, begin.kv_blocks, self._weights.salt)
        for sequence in list(self._scheduler.unfinished()):
            if wrong := too_long(sequence.request, self._capacity):
                self._end([sequence], "error", f"the group was formed anew and {wrong}")
        self._drop_foreign()
        self._stand(FORMING)
        self._ranks.open(begin.epoch)

    def _resize(self, kv_blocks: int) -> None:
        before, self._capacity = self._capacity, dataclasses.replace(self._capacity, kv_blocks=kv_blocks)
        if self._capacity != before:
            limits = self._capacity.limits
            log.info(f"the context is {limits.context} tokens{limits.remedy(limits.wanted)}")
            self._tell_status()

    def _finish(self, standing: Standing) -> None:
        self._ranks.close()
        self._epoch = 0
        self._go_on()
        self._hand_over(standing)
        self._scheduler.end()
        self._stand(standing)

    def _go_on(self) -> None:
        self._quiescence = None
        self._scheduler.holding = False

    def _swap(self, swap: Swap, text: str) -> None:
        """Every word to HTTP processes after this is of the new weights; plans wait for ``Serve``."""
        self._ranks.send(Commit(swap.epoch, swap.generation))
        self._weights = Weights(swap.model_revision, swap.generation, swap.source, text)
        self._scheduler.change_weights(self._weights.salt)
        self._announce()
        self._drop_foreign()

    def _drop_foreign(self) -> None:
        """Ids of another tokenizer mean nothing to these weights."""
        text = self._weights.text
        foreign = [s for s in self._scheduler.unfinished() if s.request.text and text and s.request.text != text]
        self._refuse_or_end(foreign, OTHER_TEXT)

    def _drain(self, until: float | None) -> None:
        self._drain_by = until
        self._announce()
        self.tick()

    def tick(self) -> None:
        """Call it every quarter of a second."""
        if self._drain_by is not None and self._clock() >= self._drain_by:
            self._hand_over(DRAINING)
            self._end(list(self._scheduler.unfinished()), "error", "the group was drained: send the request again")
        self._report()
        self._tell_status()

    # -- the ranks

    def ranks_attached(self) -> None:
        """See ``PlanListener``."""
        self._whole = True
        self._tell(Begun(self._epoch))

    def rank_lost(self, stage: int, rank: int) -> None:
        """See ``PlanListener``. No plan goes out any more; the supervisor ends the epoch."""
        self._whole = False
        self._tell(PlanLost(self._epoch, stage, rank))
        self._stand(Standing(False, Reason.RANK_LOST, f"stage {stage}: rank {rank} left the plan connection"))

    def take_result(self, result: Result) -> None:
        """See ``PlanListener``. The next plan goes out before the tokens do: ranks wait for it."""
        emissions = self._scheduler.complete(result)
        self._progress.result(self._clock())
        self._pump()
        self._book.deliver(result.step, emissions)
        self._report()

    def _pump(self) -> None:
        if self._standing.serving and not (self._quiescence and self._quiescence.stopped(self._clock())):
            while (plan := self._scheduler.plan()) is not None:
                self._ranks.send(plan)
                self._progress.plan(self._clock())

    # -- the HTTP processes

    def client_came(self, client: Client) -> None:
        """See ``RequestListener``."""
        self._book.open(client)
        client.send(serving_message(self._seen_standing(), self._epoch, self._weights, self._capacity.limits))
        self._report()

    def client_left(self, client: Client) -> None:
        """See ``RequestListener``."""
        for sequence in self._book.close(client):
            self._scheduler.cancel(sequence)
        self._report()

    def submit(self, client: Client, request: Submit) -> None:
        """See ``RequestListener``."""
        self._book.check(client, request.key)
        refusal = self._refusal(request)
        if refusal is not None:
            client.send(Refused(request.key, refusal.code, refusal.message, refusal.retry_after_s))
            return
        client.send(Accepted(request.key))
        sequence = self._scheduler.submit(request, self._clock())
        self._book.enter(client, request.key, sequence)
        if ended := finish_reason(sequence):
            self._end([sequence], ended)
        else:
            self._pump_soon()

    def _pump_soon(self) -> None:
        """Requests that came together shall share a step."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_is_due = False
        self._pump()
        self._report()

    def allow(self, client: Client, allow: Allow) -> None:
        """See ``RequestListener``. The request may have ended while this was under way."""
        if wrong := wrong_mask(allow.mask, self._capacity.vocabulary):
            raise Garbled(wrong)
        sequence = self._book.find(client, allow.key)
        if sequence is not None:
            self._scheduler.allow(sequence, allow.output, allow.mask)
            self._pump_soon()

    def cancel(self, client: Client, key: int) -> None:
        """See ``RequestListener``. The request may have ended while this was under way."""
        sequence = self._book.find(client, key)
        if sequence is not None:
            self._book.strike(sequence, "cancelled")
            self._scheduler.cancel(sequence)
            self._report()

    def _refusal(self, request: Submit) -> Refusal | None:
        standing = self._seen_standing()
        if not standing.serving:
            return Refusal(Admission.NOT_SERVING, standing.message, standing.retry_after_s)
        if request.text and self._weights.text and request.text != self._weights.text:
            return Refusal(Admission.NOT_SERVING, OTHER_TEXT.message, OTHER_TEXT.retry_after_s)
        return refuse(request, self._capacity) or refuse_full(len(self._book), self._capacity)

    # -- ends

    def _hand_over(self, standing: Standing) -> None:
        """Let somebody else go on with what has a journal. What never had a slot is plainly unprocessed."""
        self._refuse_or_end([s for s in self._scheduler.unfinished() if s.request.journalled], standing)

    def _refuse_or_end(self, sequences: list[Sequence], standing: Standing) -> None:
        self._end([s for s in sequences if s.started], "handover", f"{standing.reason}: {standing.message}")
        for sequence in sequences:
            if not sequence.started:
                client, key = self._book.strike(sequence, "handover")
                self._scheduler.cancel(sequence)
                client.send(Refused(key, Admission.NOT_SERVING, standing.message, standing.retry_after_s))

    def _end(self, sequences: list[Sequence], finish: str, message: str = "") -> None:
        for sequence in sequences:
            self._scheduler.cancel(sequence)
        emissions = [Emission(sequence, b"", finish, message=message) for sequence in sequences]
        self._book.deliver(self._scheduler.step, emissions)

    # -- what others see

    def _report(self) -> None:
        """Tell the supervisor at once of all quiet, of more clients or less, of running and waiting from or to 0."""
        if (quiescence := self._quiescence) is not None and not quiescence.told:
            quiescence.told = quiescence.reached(self._scheduler, self._clock())
            if quiescence.told:
                self._tell(Quiet(self._epoch, quiescence.generation))
        if self._progress.turned(draining=self._drain_by is not None):
            self._tell_status()

    def _tell_status(self) -> None:
        draining = self._drain_by is not None
        self._tell(self._progress.status(self._epoch, self._clock(), self._capacity.limits, draining=draining))

    def _stand(self, standing: Standing) -> None:
        self._standing = standing
        self._announce()

    def _seen_standing(self) -> Standing:
        return DRAINING if self._standing.serving and self._drain_by is not None else self._standing

    def _announce(self) -> None:
        message = serving_message(self._seen_standing(), self._epoch, self._weights, self._capacity.limits)
        for client in self._book.clients:
            client.send(message)
