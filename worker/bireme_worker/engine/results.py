"""What comes back: plans in flight, the check that a result answers the oldest of them, and what it brings."""

from collections import deque
from dataclasses import dataclass

from bireme.wire.plan import Logprobs, Result
from bireme_worker.engine.sequence import ID_BYTES, Sequence


class WrongResult(Exception):
    """A result that does not answer the oldest plan in flight: ranks and coordinator no longer agree; end the epoch."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step brought for one sequence; fields as in ``wire.requests.Tokens``."""

    sequence: Sequence
    ids: bytes
    finish: str = ""
    cached: int = 0
    logprobs: tuple[Logprobs, ...] = ()
    message: str = ""
    vector: bytes = b""
    prompt: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan without its result: everybody with a row in it, and those whose row draws, with the guesses to verify.

    ``scoring``: whose prompt is scored, from which position on, for how many tokens.
    """

    epoch: int
    step: int
    sequences: list[Sequence]
    drawing: list[tuple[Sequence, bytes]]
    scoring: tuple[tuple[Sequence, int, int], ...] = ()

    @property
    def draws(self) -> int:
        """Tokens that the result must have."""
        return sum(1 + len(guesses) // ID_BYTES for _, guesses in self.drawing)


class Flights:
    """Plans in flight, oldest first; results come in the same order."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        """A plan was issued."""
        self._flights.append(flight)

    def land(self, result: Result) -> Flight:
        """Return the plan that ``result`` answers.

        Raises:
            WrongResult: it is not the oldest one, or it does not have one id (and logprob) per drawing row.
        """
        if not self._flights:
            raise WrongResult(f"a result of step {result.step} came while no plan is in flight")
        flight = self._flights[0]
        if (result.epoch, result.step) != (flight.epoch, flight.step):
            raise WrongResult(
                f"a result of epoch {result.epoch} step {result.step} came for epoch {flight.epoch} step {flight.step}"
            )
        drawn = flight.draws
        if len(result.ids) != drawn * ID_BYTES or len(result.logprobs) not in {0, drawn}:
            raise WrongResult(
                f"step {flight.step} draws {drawn} tokens, its result has {len(result.ids)} bytes of ids "
                f"and {len(result.logprobs)} logprobs"
            )
        if len(result.prompt) != sum(count for _, _, count in flight.scoring):
            raise WrongResult(f"step {flight.step} scores not the {len(result.prompt)} prompt tokens of its result")
        return self._flights.popleft()
