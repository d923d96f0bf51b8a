"""One request as the scheduler sees it: its ids, how far it is confirmed, and how far it is issued.

Plans are issued before results are known. ``confirmed`` outputs have ids; ``issued`` outputs are those plus the ones
that plans in flight will draw; ``positions`` counts tokens whose keys and values are written by plans issued so far.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from bireme.wire.plan import Sampling
from bireme.wire.requests import Submit
from bireme_worker.engine.speculation import Speculation

BLOCK_SIZE: Final = 16
"""Tokens per KV block."""
ID_BYTES: Final = 4
"""Token ids travel and are kept as little-endian int32."""
PRIORITY_STEP_S: Final = 10.0
"""Seconds of waiting that one level of priority is worth."""


class State(Enum):
    """Where a sequence is. In ``PREEMPTED`` and ``ENDED`` plans in flight may still write its blocks."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """``order`` sorts by urgency, the smallest is served first."""

    request: Submit
    order: tuple[float, int]
    tokens: bytearray
    prompt_length: int
    confirmed: int
    issued: int
    stop_ids: frozenset[int]
    state: State = State.WAITING
    slot: int = 0
    positions: int = 0
    target: int = 0
    blocks: list[int] = field(default_factory=list)
    blocks_sent: int = 0
    labels: list[bytes] = field(default_factory=list)
    labelled: int = 0
    in_flight: int = 0
    last_step: int = -1
    cached: int = -1
    speculation: Speculation | None = None
    guessing: bool = False
    adapter: int = 0
    mask: bytes = b""
    mask_output: int = 0
    scored: int = 0

    @classmethod
    def of(cls, request: Submit, now: float, serial: int, drafts: int = 0) -> "Sequence":
        """A waiting sequence, for which up to ``drafts`` tokens are guessed at a time.

        Lower ``priority`` values are served first, as in vLLM. A level of priority counts as ``PRIORITY_STEP_S``
        seconds of waiting, so that a stream of urgent requests delays the others but can't starve them.
        """
        outputs = len(request.outputs) // ID_BYTES
        speculates = drafts > 0 and request.speculate and not (counts(request.sampling) or request.mask)
        return cls(
            request=request,
            order=(now + request.priority * PRIORITY_STEP_S, serial),
            tokens=bytearray(request.prompt + request.outputs),
            prompt_length=len(request.prompt) // ID_BYTES,
            confirmed=outputs,
            issued=outputs,
            stop_ids=frozenset(request.sampling.stop_ids),
            speculation=Speculation(drafts) if speculates else None,
            mask=request.mask,
            mask_output=outputs,
        )

    @property
    def sampling(self) -> Sampling:
        """How to draw."""
        return self.request.sampling

    @property
    def length(self) -> int:
        """Tokens whose ids are known: prompt and confirmed outputs."""
        return self.prompt_length + self.confirmed

    @property
    def started(self) -> bool:
        """Whether it ever had a slot; until then it is provably unprocessed."""
        return self.cached >= 0

    @property
    def begun(self) -> bool:
        """Whether some weights have worked on it already, here or elsewhere."""
        return self.started or self.resumed > 0

    @property
    def prefilling(self) -> bool:
        """Whether known tokens are still to be computed before the next draw."""
        return self.positions < self.target

    @property
    def scores(self) -> bool:
        """Whether log probabilities of its prompt are still wanted: then nothing of it may come from the cache."""
        return self.sampling.prompt_logprobs >= 0 and self.scored < self.prompt_length - 1

    @property
    def awaits_mask(self) -> bool:
        """Whether nobody has said yet which ids its next draw may give."""
        return bool(self.mask) and self.mask_output != self.issued

    @property
    def can_decode(self) -> bool:
        """Whether a plan may draw one more token; where a draft will go on, only the last sample can tell."""
        if self.prefilling or self.guessing or self.awaits_mask or self.issued >= self.request.max_tokens:
            return False
        return not (self.in_flight and self.speculation and self.speculation.draft(self.tokens, 1))

    @property
    def last_id(self) -> int:
        """The newest known id."""
        return int.from_bytes(self.tokens[-ID_BYTES:], "little")

    @property
    def resumed(self) -> int:
        """Outputs that were generated elsewhere before this request came."""
        return len(self.request.outputs) // ID_BYTES

    @property
    def outputs(self) -> bytes:
        """Confirmed output ids."""
        return bytes(self.tokens[self.prompt_length * ID_BYTES :])

    def ids(self, start: int, count: int) -> bytes:
        """Ids at positions ``start`` to ``start + count``."""
        return bytes(self.tokens[start * ID_BYTES : (start + count) * ID_BYTES])

    def confirm(self, token: bytes) -> None:
        """Append a drawn id (four bytes)."""
        self.tokens += token
        self.confirmed += 1

    def rewind(self) -> None:
        """Back to waiting with nothing computed; known ids stay."""
        self.state = State.WAITING
        self.slot = self.positions = self.target = self.blocks_sent = self.labelled = self.in_flight = 0
        self.last_step = -1
        self.guessing = False
        self.issued = self.confirmed
        self.blocks = []


def counts(sampling: Sampling) -> bool:
    """Whether a draw depends on which ids came before it: penalties."""
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def finish_reason(sequence: Sequence) -> str:
    """Why the newest confirmed output ends the request: ``stop``, ``length``, or "" when it goes on."""
    if sequence.confirmed > sequence.sampling.min_tokens and sequence.last_id in sequence.stop_ids:
        return "stop"
    return "length" if sequence.confirmed >= sequence.request.max_tokens else ""
