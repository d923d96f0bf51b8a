"""The leader's side of a profile: one at a time, all ranks together, and an end whatever happens.

All ranks prepare first, so that they record the same moments. A loss that ends the epoch ends the profile; it never
delays the recovery, which does not know of it.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from bireme.wire.control import ControlMessage, Profile, Profiled
from bireme.wire.profile import PROFILE_VERSION, ProfileReport, ProfileRequest, RankProfile

PREPARE_S: Final = 20.0
"""For a step to be there to be counted, and for torch's profiler to load."""
WRITE_S: Final = 90.0

_IDLE: Final = (
    "computed a step within {limit:g} s: send requests while it profiles",
    "computed no step within {limit:g} s",
)
_SLOW: Final = "wrote a trace within {limit:g} s", "did not write a trace within {limit:g} s"
"""Said of `no rank`, and of those that are missing."""

Place = tuple[int, int]
"""Stage and rank."""


class ProfileFailed(Exception):
    """The profile came to nothing; the group serves as before, or recovers from what ended the profile."""


class Profiling:
    """``tell`` sends to every stage."""

    def __init__(self, group: str, stages: int, tensor: int, tell: Callable[[ControlMessage], None]) -> None:
        self._group = group
        self._places = frozenset((stage, rank) for stage in range(stages) for rank in range(tensor))
        self._tell = tell
        self._current: _Current | None = None

    @property
    def runs(self) -> bool:
        """One is under way."""
        return self._current is not None

    async def run(self, asked: ProfileRequest, epoch: int, model_revision: str) -> ProfileReport:
        """Profile all ranks.

        Raises:
            ProfileFailed: why.
        """
        name = secrets.token_hex(4)
        current = self._current = _Current(name, epoch, self._places)
        done = False
        try:
            self._tell(Profile(name, epoch, "Prepare", asked.steps, asked.seconds))
            await current.until_all(current.prepared, PREPARE_S, _IDLE)
            self._tell(Profile(name, epoch, "Record"))
            await current.until_all(current.reports, asked.seconds + WRITE_S, _SLOW)
            done = True
        finally:
            self._current = None
            if not done:
                self._tell(Profile(name, epoch, "Stop"))
        ranks = tuple(current.reports[place] for place in sorted(current.reports))
        return ProfileReport(PROFILE_VERSION, name, self._group, epoch, model_revision, ranks)

    def hear(self, stage: int, said: Profiled) -> None:
        """A rank is ready, or done, or could not."""
        if self._current is not None and said.id == self._current.name:
            self._current.hear((stage, said.rank), said)

    def look(self, epoch: int, why: str) -> None:
        """The group serves ``epoch`` now, 0: none, because of ``why``."""
        if self._current is not None and self._current.epoch != epoch:
            self._current.fail(f"the profile ended with its epoch: {why}")


class _Current:
    def __init__(self, name: str, epoch: int, places: frozenset[Place]) -> None:
        self.name, self.epoch = name, epoch
        self.prepared: dict[Place, Profiled] = {}
        self.reports: dict[Place, RankProfile] = {}
        self._places = places
        self._error = ""
        self._changed = asyncio.Event()

    def hear(self, place: Place, said: Profiled) -> None:
        stage, rank = place
        if said.error:
            self.fail(f"stage {stage}: rank {rank}: {said.error}")
        elif said.report is not None:
            self.reports[place] = said.report
        else:
            self.prepared[place] = said
        self._changed.set()

    def fail(self, error: str) -> None:
        self._error = self._error or error
        self._changed.set()

    async def until_all(
        self, answers: dict[Place, Profiled] | dict[Place, RankProfile], limit: float, late: tuple[str, str]
    ) -> None:
        try:
            async with asyncio.timeout(limit):
                while not self._error and len(answers) < len(self._places):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = sorted(self._places - answers.keys())
            some = ", ".join(f"stage {stage} rank {rank}" for stage, rank in missing)
            self._error = f"{some if answers else 'no rank'} {late[bool(answers)].format(limit=limit)}"
        if self._error:
            raise ProfileFailed(self._error)
