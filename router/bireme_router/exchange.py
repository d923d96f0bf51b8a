"""One client request from first send to last byte, over as many attempts as it takes.

Choose a group, send, and when that fails ask the policies whether to pass the failure on, to send the same bytes
again, or to continue from what the client holds. While no group is at hand the request waits, until the queue timeout
when nothing was sent yet, until its deadline when the client holds a part.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from bireme.names import Admission
from bireme_router.accounts import Lease
from bireme_router.attempt import Attempt
from bireme_router.edge.tracing import attempt_span, end_attempt
from bireme_router.errors import DeadlinePassed, EngineFailed, GroupsLost, NotTaken, WorkerRefused
from bireme_router.groups import Groups
from bireme_router.headers import returned
from bireme_router.hedge import Contest, race
from bireme_router.job import Job
from bireme_router.key_limits import KeyLimits
from bireme_router.metrics import RouterMetrics
from bireme_router.outcome import Failed, Finished, Lost, Outcome, Refused
from bireme_router.policies.avoidance import Setback, leave_alone_s
from bireme_router.policies.continuation import GoOn, how_to_go_on, may_try_again
from bireme_router.policies.cost import OUTPUT_GUESS, remaining_cost, typical
from bireme_router.policies.eligible import Key
from bireme_router.policies.hedge_budget import HedgeBudget
from bireme_router.policies.retry_budget import RetryBudget
from bireme_router.policies.unprocessed import asks_elsewhere
from bireme_router.room import WaitingRoom
from bireme_router.selection import Selection, Wish
from bireme_router.settings import Settings
from bireme_router.sink import Sink
from bireme_router.transcript import Transcript

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)


@dataclass
class Dispatch:
    """What all requests of this process share."""

    settings: Settings
    session: aiohttp.ClientSession
    groups: Groups
    selection: Selection
    room: WaitingRoom
    limits: KeyLimits
    metrics: RouterMetrics
    budget: RetryBudget
    hedges: HedgeBudget = field(default_factory=HedgeBudget)
    typical_output: float = OUTPUT_GUESS

    async def spend_retry(self) -> None:
        """Take one retry from the budget, waiting until there is one."""
        clock = asyncio.get_running_loop().time
        budget = self.budget.spent(clock())
        while budget is None:
            await asyncio.sleep(self.budget.wait_s(clock()))
            budget = self.budget.spent(clock())
        self.budget = budget


class Exchange:
    """Answers one job into its sink."""

    def __init__(self, dispatch: Dispatch, job: Job, sink: Sink, span: "Span | None" = None) -> None:
        self._span = span
        self._shared = dispatch
        self._job = job
        self._sink = sink
        self._transcript = Transcript(job.choices, wants_usage=job.wants_usage)
        self._cost = job.cost(dispatch.typical_output)
        self._clock = asyncio.get_running_loop().time
        self._avoid: dict[Key, float] = {}
        self._setbacks: Counter[Key] = Counter()
        self._sent = 0
        self._losses = 0
        self._charged = 0
        self._trouble = ""

    async def run(self) -> None:
        """Return when the client has the whole answer.

        Raises:
            RouterError: there will be no (more) answer.
            ClientLeft: there is nobody to answer to.
        """
        dispatch = self._shared
        dispatch.limits.admit(self._job.key, self._cost.tokens)
        dispatch.budget = dispatch.budget.admitted(self._clock())
        dispatch.hedges = dispatch.hedges.admitted()
        try:
            async with asyncio.timeout_at(self._job.deadline):
                await self._until_answered()
        except TimeoutError:
            raise self._too_late() from None
        finally:
            if not self._job.whole:  # nobody has counted an object's tokens: the guess stands
                self._settle()
        if not self._job.whole:
            dispatch.typical_output = typical(dispatch.typical_output, self._transcript.tokens)

    async def _until_answered(self) -> None:
        while True:
            lease = await self._place()
            tokens = self._transcript.tokens
            lease, outcome = await self._raced(lease)
            if self._transcript.tokens > tokens:
                self._losses = 0
            if isinstance(outcome, Refused):
                await self._after_refusal(lease, outcome)
            elif isinstance(outcome, Lost):
                if await self._after_loss(lease, outcome):
                    return
            elif isinstance(outcome, Failed):
                raise EngineFailed(outcome.payload)
            else:
                return

    async def _raced(self, lease: Lease) -> tuple[Lease, Outcome]:
        """One attempt; or two, where nothing was delivered yet and the first is slow."""
        after_s = self._shared.settings.hedge_after_s
        if not after_s or self._transcript.visible:
            try:
                return lease, await self._attempt(lease, _nobody_else)
            finally:
                lease.release()
        ended = await race(lease, self._contend, lambda: self._second(lease), after_s)
        for fallen, outcome in ended.fallen:
            self._set_back(fallen, outcome.setback if isinstance(outcome, Lost) else Setback.REFUSED)
        if ended.hedged:
            self._shared.metrics.hedged("first" if ended.lease is lease else "second")
        return ended.lease, ended.outcome

    def _second(self, first: Lease) -> Lease | None:
        spent = self._shared.hedges.spent()
        if spent is None:
            return None
        wish = replace(self._wish(), avoid={**self._avoid, first.key: float("inf")})
        lease = self._shared.selection.choose(wish)
        if lease is not None:
            self._shared.hedges = spent
        return lease

    async def _contend(self, lease: Lease, contest: Contest) -> Outcome:
        return await self._attempt(lease, lambda: contest.claim(lease))

    async def _attempt(self, lease: Lease, claim: Callable[[], bool]) -> Outcome:
        shared = self._shared
        self._sent += 1
        if self._transcript.begun and lease.revision != self._transcript.model_revision:
            self._transcript.move_to(lease.revision)
        attempt = Attempt(
            shared.session,
            shared.settings,
            job=self._job,
            transcript=self._transcript,
            sink=self._sink,
            lease=lease,
            revision=(revision := shared.metrics.revision(lease.version)),
            claim=claim,
        )
        resume, before = self._transcript.resume(), self._transcript.tokens
        span, traced = attempt_span(self._span, lease.where.group, lease.key.pod, self._sent)
        ended = "cancelled"
        try:
            outcome = await attempt.run(self._job.body(resume), self._sent, traced)
            ended = type(outcome).__name__.lower()
        finally:
            end_attempt(span, ended, self._transcript.tokens - before)
        revision.ended(outcome)
        if resume is None and isinstance(outcome, Finished):
            self._verify(lease)
        return outcome

    async def _place(self) -> Lease:
        begun = self._transcript.visible
        limit = None if begun else self._shared.settings.queue_timeout_s
        came = self._clock()
        try:
            async with asyncio.timeout(limit) as waiting:
                lease = await self._shared.room.take(self._wish(), begun=begun)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise self._no_group(limit or 0.0) from None
        if not begun:
            self._charged += self._cost.tokens
            self._shared.metrics.queued[self._job.priority].observe(self._clock() - came)
        return lease

    def _wish(self) -> Wish:
        transcript, job = self._transcript, self._job
        cost, revision = self._cost, None
        if transcript.begun:
            cost = remaining_cost(cost, len(transcript.prompt), transcript.tokens)
            revision = transcript.model_revision
            if self._shared.settings.cross_revision and not self._shared.selection.any_of(revision):
                revision = None
        patience = min(self._shared.settings.queue_timeout_s, job.deadline - self._clock())
        zone = job.zone or self._shared.settings.zone
        return Wish(cost, revision, self._avoid, job.priority, job.key, job.trail, patience, zone)

    def _verify(self, lease: Lease) -> None:
        reported = self._transcript.cached_tokens
        if reported is not None:
            predicted = round(lease.predicted_share * len(self._transcript.prompt))
            self._shared.groups.affinity.verified(lease.key, predicted, reported)

    def _settle(self) -> None:
        """What was charged by guess is set right, for fairness and for the key's rate."""
        actual = len(self._transcript.prompt) + self._transcript.tokens
        self._shared.room.settle(self._job.key, actual - self._charged)
        self._shared.limits.settle(self._job.key, actual - self._cost.tokens)

    async def _after_refusal(self, lease: Lease, refused: Refused) -> None:
        self._set_back(lease, Setback.REFUSED, refused.retry_after_s)
        self._trouble = f"group {lease.where.group} refused with {refused.status}"
        again = asks_elsewhere(
            refused.status,
            unprocessed=refused.unprocessed,
            resuming=self._transcript.begun,
            others=self._shared.selection.would_take(self._wish()),
        )
        if not again or self._shared.settings.retry_attempts == 1:
            raise WorkerRefused(refused.status, refused.body, returned(refused.headers))
        await self._count_resend(self._trouble)

    async def _after_loss(self, lease: Lease, lost: Lost) -> bool:
        """Prepare the next attempt; true when the answer was complete after all."""
        self._set_back(lease, lost.setback)
        self._trouble = f"group {lease.where.group}: {lost.reason}"
        if lost.setback in (Setback.UNREACHED, Setback.BROKEN, Setback.SILENT):
            self._shared.groups.suspect(lease.key, f"a request failed there: {lost.reason}")
        way = how_to_go_on(self._transcript.delivered())
        if way is GoOn.COMPLETE:
            await self._sink.write([b"data: [DONE]\n\n"], {})
            await self._sink.finish()
            return True
        if lost.setback not in (Setback.UNREACHED, Setback.HANDED_OVER):
            self._losses += 1
        attempts = self._shared.settings.retry_attempts
        if way is GoOn.GIVE_UP or attempts == 1 or not may_try_again(self._losses, attempts):
            raise self._given_up(way)
        if way is GoOn.RESUME:
            self._shared.metrics.resumes.inc()
            delivered = self._transcript.tokens
            log.info("request %s goes on after %d tokens; %s", self._job.request_id, delivered, self._trouble)
        else:
            await self._count_resend(self._trouble)
        return False

    def _set_back(self, lease: Lease, setback: Setback, retry_after: float = 0.0) -> None:
        key = lease.key
        self._setbacks[key] += 1
        self._avoid[key] = self._clock() + leave_alone_s(setback, self._setbacks[key], retry_after)

    async def _count_resend(self, why: str) -> None:
        await self._shared.spend_retry()
        self._shared.metrics.resends.inc()
        log.info("request %s is sent again; %s", self._job.request_id, why)

    def _no_group(self, waited_s: float) -> NotTaken:
        return NotTaken(
            Admission.NOT_SERVING,
            f"no group could take the request within {waited_s:g} s{self._because()}: ask again later",
            self._shared.room.retry_after_s(),
        )

    def _too_late(self) -> NotTaken | DeadlinePassed:
        seconds = self._job.deadline - self._job.arrived
        if self._sent:
            return DeadlinePassed(
                f"the answer was not complete after {seconds:g} s, the request's limit{self._because()}"
            )
        return NotTaken(
            Admission.DEADLINE,
            f"no group could take the request within {seconds:g} s, its limit: allow more time or ask again later",
            self._shared.room.retry_after_s(),
        )

    def _given_up(self, way: GoOn) -> GroupsLost:
        if way is GoOn.GIVE_UP:
            return GroupsLost(f"the answer broke off and can't be continued{self._because()}")
        return GroupsLost(f"the request was lost {max(self._losses, 1)} times without progress{self._because()}")

    def _because(self) -> str:
        return f"; last: {self._trouble}" if self._trouble else ""


def _nobody_else() -> bool:
    return True
