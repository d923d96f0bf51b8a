"""A request on two groups: whoever answers first goes on, the other is cancelled before the client sees a byte of it.

Both draw with the same seed, so the answer is the same whoever wins. A group has answered when its status line is
there, which a worker sends with its first tokens. ``policies.hedge_budget`` bounds how often.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bireme_router.accounts import Lease
from bireme_router.outcome import Outcome


class Contest:
    """Who answered first."""

    def __init__(self) -> None:
        self.winner: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    def claim(self, lease: Lease) -> bool:
        """Whether ``lease`` may go on, since no other did before it."""
        if not self.winner.done():
            self.winner.set_result(lease)
        return self.winner.result() is lease


Try = Callable[[Lease, Contest], Awaitable[Outcome]]
Running = dict["asyncio.Future[Outcome]", Lease]


@dataclass
class Race:
    """How it ended: ``lease`` and ``outcome`` of whoever went on, or failed last; ``fallen``: who failed before."""

    lease: Lease
    outcome: Outcome
    hedged: bool = False
    fallen: list[tuple[Lease, Outcome]] = field(default_factory=list)


async def race(first: Lease, attempt: Try, second: Callable[[], Lease | None], after_s: float) -> Race:
    """Try ``first``, and after ``after_s`` seconds without an answer what ``second`` gives, if anything.

    All leases are released at the end.
    """
    contest = Contest()
    running: Running = {asyncio.ensure_future(attempt(first, contest)): first}
    fallen: list[tuple[Lease, Outcome]] = []
    hedged = False
    try:
        await _something(running, contest, after_s)
        slow = not contest.winner.done() and not any(task.done() for task in running)
        if slow and (other := second()) is not None:
            running[asyncio.ensure_future(attempt(other, contest))] = other
            hedged = True
        while not contest.winner.done():
            await _something(running, contest, None)
            for task in [task for task in running if task.done() and not contest.winner.done()]:
                lease = running.pop(task)
                lease.release()
                if not running:
                    return Race(lease, task.result(), hedged, fallen)
                fallen.append((lease, task.result()))
        winner = contest.winner.result()
        await _cancel({task: lease for task, lease in running.items() if lease is not winner})
        outcome = await next(task for task, lease in running.items() if lease is winner)
        return Race(winner, outcome, hedged, fallen)
    finally:
        await _cancel(running)


async def _something(running: Running, contest: Contest, timeout_s: float | None) -> None:
    waited: list[asyncio.Future[Any]] = [*running, contest.winner]
    await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(tasks: Running) -> None:
    for task in tasks:
        task.cancel()
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:  # also where this is cancelled once more: a place that nobody gives back is lost for good
        for lease in tasks.values():
            lease.release()
