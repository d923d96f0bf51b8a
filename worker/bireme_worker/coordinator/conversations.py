"""One task per accepted connection, kept until it ends.

asyncio's own tasks for connection handlers report their cancellation as an error when the process stops; these do not.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def each_in_a_task(converse: Converse) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """The callback for ``asyncio.start_server`` and ``start_unix_server``."""
    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(converse(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin
