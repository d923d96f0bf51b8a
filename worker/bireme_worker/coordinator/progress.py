"""How far the group is: the status that the supervisor reads health, load and drain progress from."""

from bireme.wire.requests import Limits
from bireme_worker.coordinator.book import Book
from bireme_worker.coordinator.messages import Status
from bireme_worker.engine.scheduler import Scheduler


class Progress:
    """Watches plans and results go by. Only a plan without a result ages; an idle group is healthy for days."""

    def __init__(self, scheduler: Scheduler, book: Book) -> None:
        self._scheduler = scheduler
        self._book = book
        self._since = 0.0
        self._told: tuple[bool, bool, bool, int] | None = None

    def plan(self, now: float) -> None:
        """A plan was issued."""
        if self._scheduler.in_flight == 1:
            self._since = now

    def result(self, now: float) -> None:
        """A result came."""
        self._since = now

    def turned(self, *, draining: bool) -> bool:
        """Whether something changed since the last status that must not wait for the next tick."""
        return self._told != self._turning(draining)

    def status(self, epoch: int, now: float, limits: Limits, *, draining: bool) -> Status:
        """The status now."""
        self._told = self._turning(draining)
        scheduler, pool, counters = self._scheduler, self._scheduler.space.pool, self._scheduler.counters
        return Status(
            epoch=epoch,
            running=len(scheduler.running),
            waiting=self._waiting,
            queued_prefill_tokens=scheduler.queued_prefill_tokens,
            kv_blocks_used=pool.used,
            kv_blocks=pool.total,
            step=scheduler.step - scheduler.in_flight,
            step_age_s=now - self._since if scheduler.in_flight else 0.0,
            draining=draining,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generation_tokens=counters.generation_tokens,
            finished=dict(self._book.finished),
            nonfinite=counters.nonfinite,
            drafted=counters.drafted,
            accepted=counters.accepted,
            clients=len(self._book.clients),
            limits=limits,
        )

    @property
    def _waiting(self) -> int:
        return len(self._book) - len(self._scheduler.running)

    def _turning(self, draining: bool) -> tuple[bool, bool, bool, int]:
        return draining, bool(self._scheduler.running), self._waiting > 0, len(self._book.clients)
