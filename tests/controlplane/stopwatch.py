"""Whether something was done as soon as it has to be, on a machine that stands still for seconds now and then.

When a thing was done is read from what the API server stamped on it, not from when a test came to look. What no design
can help is taken off: a thread that wants to wake up every 50 ms notes by how much it comes late, which is how long
this machine had no time for anybody, or was not there at all.
"""

import time
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event, Thread
from typing import Any, Final, Self

_TICK_S: Final = 0.05


@dataclass
class Stopwatch:
    """Begins with the block: what is to be followed by something has just happened."""

    began: float = field(default_factory=time.time)
    stood_still_s: float = 0.0
    _over: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self.began = time.time()
        self._ticker = Thread(target=self._tick, name="stopwatch", daemon=True)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ticker.join()

    def assert_made(self, made: dict[str, Any], within_s: float) -> None:
        """Fail if an object was made later than that; the server stamps whole seconds, rounded down."""
        took_s = datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp() - self.began
        told = f"{made['metadata']['name']} was made after {took_s:.1f} s, due within {within_s:g}"
        print(told := f"{told}; this machine stood still for {self.stood_still_s:.1f}")
        assert took_s - self.stood_still_s <= within_s, told

    def _tick(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            self.stood_still_s += max(now - before - _TICK_S, 0.0)
            before = now
