"""Which request belongs to which HTTP process, and the one frame per process and step that carries its news."""

from collections import Counter
from collections.abc import Collection, Iterable

from bireme.wire.errors import Garbled
from bireme.wire.requests import Frame, Tokens
from bireme_worker.coordinator.request_port import Client
from bireme_worker.engine.results import Emission
from bireme_worker.engine.sequence import Sequence


class Book:
    """``finished`` counts ended requests by reason, over the life of the process."""

    def __init__(self) -> None:
        self._keys: dict[Client, dict[int, Sequence]] = {}
        self._owners: dict[Sequence, tuple[Client, int]] = {}
        self.finished: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def clients(self) -> Collection[Client]:
        """Connected HTTP processes."""
        return self._keys.keys()

    def open(self, client: Client) -> None:
        """An HTTP process came."""
        self._keys[client] = {}

    def close(self, client: Client) -> list[Sequence]:
        """It is gone: strike and return its requests."""
        left = list(self._keys.pop(client, {}).values())
        for sequence in left:
            del self._owners[sequence]
            self.finished["cancelled"] += 1
        return left

    def check(self, client: Client, key: int) -> None:
        """Refuse a key that is in use.

        Raises:
            Garbled: it is; answers could not be told apart.
        """
        if key in self._keys[client]:
            raise Garbled(f"key {key} is in use")

    def enter(self, client: Client, key: int, sequence: Sequence) -> None:
        """A request begins."""
        self._keys[client][key] = sequence
        self._owners[sequence] = client, key

    def find(self, client: Client, key: int) -> Sequence | None:
        """The request with this key, None when it has ended."""
        return self._keys[client].get(key)

    def named(self, request_id: str) -> list[Sequence]:
        """All choices of one request."""
        return [sequence for sequence in self._owners if sequence.request.request_id == request_id]

    def strike(self, sequence: Sequence, reason: str) -> tuple[Client, int]:
        """A request ended; return whose it was, for the last message."""
        client, key = self._owners.pop(sequence)
        del self._keys[client][key]
        self.finished[reason] += 1
        return client, key

    def deliver(self, step: int, emissions: Iterable[Emission]) -> None:
        """Send each HTTP process what the step brought for it."""
        frames: dict[Client, list[Tokens]] = {}
        for emission in emissions:
            sequence, finish = emission.sequence, emission.finish
            client, key = self.strike(sequence, finish) if finish else self._owners[sequence]
            told = emission.cached, emission.logprobs, emission.message, emission.vector, emission.prompt
            tokens = Tokens(key, emission.ids, finish, *told)
            frames.setdefault(client, []).append(tokens)
        for client, batch in frames.items():
            client.send(Frame(step, tuple(batch)))
