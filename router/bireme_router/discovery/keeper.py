"""Keeps the picture of the groups true: one watcher per leader, by the routes file or by the pods of a cluster.

In a cluster the file still names models and weights; its groups serve until the API server was heard once. A sweep over
the open streams ends those that only look alive.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bireme.wire.routes import Route, Routes
from bireme.wire.state import StateDocument
from bireme_router.discovery.cluster import Cluster
from bireme_router.discovery.pods import LEADER, Leader, leaders_of, selector
from bireme_router.discovery.routes_file import follow_routes, read_tokens
from bireme_router.discovery.watch import watch
from bireme_router.groups import Group, Groups, PodStanding

_SWEEP_S: Final = 0.25


@dataclass(frozen=True)
class LeaderSource:
    """Where leaders are found in a cluster. ``tokens``: directory with the group tokens by index."""

    cluster: Cluster
    deployment: str
    tokens: Path


class Keeper:
    """Runs until it is cancelled; an error in any part ends it with that error."""

    def __init__(
        self,
        path: Path,
        groups: Groups,
        session: aiohttp.ClientSession,
        on_news: Callable[[], None] = lambda: None,
        source: LeaderSource | None = None,
    ) -> None:
        """``on_news`` is called whenever a group may have changed."""
        self._path = path
        self._on_news = on_news
        self._groups = groups
        self._session = session
        self._source = source
        self._file: Routes | None = None
        self._leaders: list[Leader] | None = None
        self._watchers: dict[Route, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow routes, pods and states."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            if self._source is not None:
                tasks.create_task(self._follow_pods(tasks, self._source))
            async for routes in follow_routes(self._path):
                self._file = routes
                self._apply(tasks)

    async def _follow_pods(self, tasks: asyncio.TaskGroup, source: LeaderSource) -> None:
        async for pods in source.cluster.follow(selector(source.deployment, LEADER)):
            leaders = leaders_of(pods, source.tokens)
            if leaders != self._leaders:
                self._leaders = leaders
                self._apply(tasks)

    def _apply(self, tasks: asyncio.TaskGroup) -> None:
        if self._file is None:
            return
        leaders = self._leaders
        routes = tuple(leader.route for leader in leaders) if leaders is not None else self._file.groups
        self._groups.apply(msgspec.structs.replace(self._file, groups=routes), read_tokens(routes))
        self._groups.pods({one.route.pod: PodStanding(one.ready, one.leaving) for one in leaders or ()})
        current = {group.route: group for group in self._groups.all()}
        for route in self._watchers.keys() - current.keys():
            self._watchers.pop(route).cancel()
        for route in current.keys() - self._watchers.keys():
            self._watchers[route] = tasks.create_task(self._watch(current[route]))

    async def _watch(self, group: Group) -> None:
        async for said in watch(self._session, group.route.admin, group.where.token):
            if isinstance(said, StateDocument):
                self._groups.heard(group.route, said)
            else:
                self._groups.silent(group.route, said.reason)
            self._on_news()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._groups.abandon_lost()
            self._on_news()
