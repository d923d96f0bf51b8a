"""Keeps the picture of the groups true: one watcher per leader in the routes.

A sweep over the open streams ends those that only look alive.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

from bireme.wire.routes import Route
from bireme.wire.state import StateDocument
from bireme_router.discovery.routes_file import follow_routes, read_tokens
from bireme_router.discovery.watch import watch
from bireme_router.groups import Group, Groups

_SWEEP_S: Final = 0.25


class Keeper:
    """Runs until it is cancelled; an error in any part ends it with that error."""

    def __init__(
        self, path: Path, groups: Groups, session: aiohttp.ClientSession, on_news: Callable[[], None] = lambda: None
    ) -> None:
        """``on_news`` is called whenever a group may have changed."""
        self._path = path
        self._on_news = on_news
        self._groups = groups
        self._session = session
        self._watchers: dict[Route, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow routes and states."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            async for routes in follow_routes(self._path):
                self._groups.apply(routes, read_tokens(routes.groups))
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
