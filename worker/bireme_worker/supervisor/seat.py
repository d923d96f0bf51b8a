"""One stage's seat in the group, as the leader sees it.

A stage is ready for the next epoch when it is connected and says that all its ranks hold the wanted weights: Loaded,
until a Lost takes it back. ``epoch`` is the one that it was sent into and has not left (Ended) yet.
"""

from dataclasses import dataclass

from bireme.wire.control import Address, Hello


@dataclass
class Seat:
    """``connection`` 0: nobody. ``epoch`` 0: in none. ``since``: when the current wait for it began."""

    stage: int
    since: float
    connection: int = 0
    incarnation: int = 0
    boot: str = ""
    data: tuple[Address, ...] = ()
    loaded: bool = False
    kv_blocks: int = 0
    epoch: int = 0
    formed: bool = False
    prepared: bool = False
    leave_by: float | None = None

    @property
    def present(self) -> bool:
        """Somebody is connected."""
        return self.connection != 0

    @property
    def ready(self) -> bool:
        """An epoch may be formed with it now."""
        return self.present and self.loaded and self.leave_by is None

    def take(self, connection: int, hello: Hello, now: float) -> None:
        """A new conversation with this stage; it is in no epoch and must say Loaded (again)."""
        self.connection, self.incarnation, self.boot, self.data = connection, hello.incarnation, hello.boot, hello.data
        self._clear(now)

    def leave(self, now: float) -> None:
        """The conversation ended; the incarnation stays, so that an older one can't take the seat."""
        self.connection = 0
        self._clear(now)

    def _clear(self, now: float) -> None:
        self.loaded, self.kv_blocks, self.epoch, self.formed, self.leave_by = False, 0, 0, False, None
        self.since = now

    def waits_for(self) -> str:
        """What the group waits for at this seat, or nothing."""
        if not self.present:
            return f"stage {self.stage} to join"
        if not self.loaded:
            return f"stage {self.stage} to load"
        if self.epoch and not self.formed:
            return f"stage {self.stage} to form"
        return ""
