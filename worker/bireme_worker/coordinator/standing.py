"""Whether the group takes work, and if not, why and when to come again: the words for HTTP processes and refusals."""

from dataclasses import dataclass
from typing import Final

from bireme.names import Reason
from bireme.wire.requests import Limits, Serving

RETRY_AFTER_S: Final = 1.0
"""What a client is told while nobody knows better; recovery takes a few seconds."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The epoch's state in the words of ``names.Reason``."""

    serving: bool
    reason: str
    message: str = ""
    retry_after_s: float = RETRY_AFTER_S


@dataclass(frozen=True, slots=True)
class Weights:
    """Which weights answer: the checkpoint's name, how many reloads led to it, where it lies, whose ids it takes."""

    model_revision: str
    generation: int = 0
    source: str = ""
    text: str = ""

    @property
    def salt(self) -> bytes:
        """Keeps prefixes of other weights apart."""
        return f"{self.model_revision}/{self.generation}".encode()


STARTING: Final = Standing(False, Reason.LOADING, "the group starts")
FORMING: Final = Standing(False, Reason.RENDEZVOUS, "the group's ranks find one another")
TAKING_WORK: Final = Standing(True, Reason.NONE, retry_after_s=0.0)
OTHER_TEXT: Final = Standing(False, Reason.COMMITTING, "other weights with another tokenizer took over", 0.1)
DRAINING: Final = Standing(False, Reason.DRAIN_REQUESTED, "the group is being drained")


def serving_message(standing: Standing, epoch: int, weights: Weights, limits: Limits) -> Serving:
    """The message for HTTP processes."""
    return Serving(
        serving=standing.serving,
        reason=standing.reason,
        message=standing.message,
        retry_after_s=standing.retry_after_s,
        epoch=epoch,
        model_revision=weights.model_revision,
        generation=weights.generation,
        limits=limits,
        source=weights.source,
        text=weights.text,
    )
