"""Listens to every leader: one `/watch` stream each, the last document, and whether the stream lives.

A stream that breaks is dialled again, quickly at first, because a restarted leader should be seen serving at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from bireme.names import Header, Port
from bireme.wire.errors import Garbled, WireError, WrongVersion
from bireme.wire.state import StateDocument, read_state
from bireme_operator.local.clock import Clock
from bireme_operator.plan.observed import SILENT_AFTER_S, WATCH_INTERVAL_S, LeaderView
from bireme_operator.plan.suspects import UNHEARD_S

log = logging.getLogger(__name__)

_FIRST_REDIAL_S: Final = 0.1
_LAST_REDIAL_S: Final = 1.0
_LINE_LIMIT: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Leader:
    """Whom to listen to, and what proves that it is the right one."""

    pod: str
    group: int
    group_uid: str
    incarnation: int
    address: str
    token: str


class Watcher:
    """The last word of each leader. ``changed`` is called when that differs in what matters here."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock, changed: Callable[[], None]) -> None:
        self._session = session
        self._clock = clock
        self._changed = changed
        self._tasks: dict[Leader, asyncio.Task[None]] = {}
        self._said: dict[Leader, tuple[object, ...]] = {}
        self.views: dict[int, LeaderView] = {}
        self.strangers: dict[str, str] = {}
        """Why a leader can't be understood, by pod."""

    def follow(self, leaders: Iterable[Leader]) -> None:
        """Listen to exactly these leaders from now on."""
        wanted = set(leaders)
        for leader in self._tasks.keys() - wanted:
            self._tasks.pop(leader).cancel()
            self._said.pop(leader, None)
            self.views.pop(leader.group, None)
            self.strangers.pop(leader.pod, None)
        for leader in wanted - self._tasks.keys():
            self._tasks[leader] = asyncio.get_running_loop().create_task(self._listen(leader))

    async def close(self) -> None:
        """Stop listening."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, leader: Leader) -> None:
        redial = _FIRST_REDIAL_S
        while True:
            stranger = ""
            try:
                async for document in self._documents(leader):
                    self._hear(leader, document)
                    redial = _FIRST_REDIAL_S
            except (aiohttp.ClientError, OSError, TimeoutError, WireError) as error:
                log.debug("/watch of %s: %s", leader.pod, str(error) or type(error).__name__)
                stranger = str(error) if isinstance(error, WrongVersion) else ""
            self._broke(leader)
            self._note(leader, stranger)
            await asyncio.sleep(redial)
            redial = min(2 * redial, _LAST_REDIAL_S)

    async def _documents(self, leader: Leader) -> AsyncIterator[StateDocument]:
        url = f"http://{leader.address}:{int(Port.ADMIN)}/watch"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENT_AFTER_S, sock_read=SILENT_AFTER_S)
        headers: dict[str, str] = {Header.TOKEN: f"Bearer {leader.token}"}
        parameters = {"interval": f"{WATCH_INTERVAL_S:g}"}
        async with self._session.get(
            url, params=parameters, headers=headers, timeout=timeout, read_bufsize=_LINE_LIMIT
        ) as response:
            if response.status != 200:
                raise Garbled(f"/watch answered {response.status}")
            async for line in response.content:
                document = read_state(line)
                if (document.group, document.incarnation) != (leader.group_uid, leader.incarnation):
                    raise Garbled(f"another pod answers at {leader.address}")
                yield document

    def _hear(self, leader: Leader, document: StateDocument) -> None:
        self._note(leader, "")
        before, said = self.views.get(leader.group), _essence(document)
        known = self._said.get(leader)
        news = said != known
        if known is None or news:
            known = self._said[leader] = said
        self.views[leader.group] = LeaderView(leader.pod, document, self._clock(), word=known)
        if before is None or not before.connected or news:
            self._changed()

    def _note(self, leader: Leader, stranger: str) -> None:
        if stranger != self.strangers.pop(leader.pod, ""):
            log.warning("/watch of %s: %s", leader.pod, stranger or "it is understood again, or silent")
            self._changed()
        if stranger:
            self.strangers[leader.pod] = stranger

    def _broke(self, leader: Leader) -> None:
        view = self.views.get(leader.group)
        if view is not None and view.pod == leader.pod and view.connected:
            self.views[leader.group] = replace(view, connected=False)
            self._changed()


def _essence(document: StateDocument) -> tuple[object, ...]:
    """What plan, status or event log depend on. A busy leader speaks at every step; most of that is for the router."""
    requests = document.running + document.waiting
    counted = requests if document.draining else requests > 0
    said = (document.state, document.reason, document.message, document.epoch)
    ranks = tuple((stage.stage, rank.rank, rank.pid, rank.phase) for stage in document.stages for rank in stage.ranks)
    stages = tuple((stage.incarnation, stage.last_heard_s >= UNHEARD_S) for stage in document.stages)
    served = (document.model_revision, document.source, document.limits)
    return (*said, *served, document.boot, document.draining, document.reload, counted, ranks, stages)
