"""Work that a visit begins and does not wait for: requests of one deployment that take longer than a plan does.

A visit that waited for a thousand requests would see nothing of what happens meanwhile. An errand that fails makes the
next visit fail in its stead, so that the queue's backoff holds for it and nothing fails unseen.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any


class Errands:
    """Errands by name, one of a name at a time. ``changed`` is called at the end of each."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._trouble: BaseException | None = None

    def __contains__(self, name: Hashable) -> bool:
        """Whether the errand is under way."""
        return name in self._tasks

    def begin(self, name: Hashable, work: Coroutine[Any, Any, None]) -> None:
        """Begin an errand; its name must be free."""
        assert name not in self._tasks
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._end(name, task))

    def check(self) -> None:
        """Raise what an errand has failed with since the last time.

        Raises:
            KubeError: the server did not do what it was asked.
            LostLease: this process may not write any more.
        """
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    async def finish(self, name: Hashable) -> None:
        """Wait until the errand of this name is over, however it ends."""
        if (task := self._tasks.get(name)) is not None:
            await asyncio.wait([task])

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, name: Hashable, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(name, None)
        if task.cancelled():
            return
        if error := task.exception():
            self._trouble = self._trouble or error
        self._changed()
