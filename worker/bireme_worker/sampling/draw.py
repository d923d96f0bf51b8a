"""What the host knows of the rows that sample in a step: it decides which operators run.

The values themselves (temperature, seed, ...) stay on the device with the slot. A step of greedy requests thus runs
nothing but an argmax, and a step with one penalised request runs the penalty for that row alone, without ever asking
the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bireme.wire.plan import Sampling

COLDEST: Final = 1e-5
"""A lower temperature is greedy: divided by it scores would leave float32, and noise could only break ties."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Row numbers among the sampling rows of one step, by what they need.

    Attributes:
        rows: how many rows sample.
        hot: a temperature that is not greedy. ``top_k``, ``top_p``, ``min_p``: does any of these rows filter so?
        filtered: places in ``hot`` (not row numbers) of the rows with any filter.
        penalised, biased, held: rows with penalties, with bias, with stop ids that must not be drawn yet.
        masked: rows that may draw only some ids.
        reported: rows that want logprobs; ``tops``: how many alternatives each of them wants.
    """

    rows: int
    hot: tuple[int, ...] = ()
    filtered: tuple[int, ...] = ()
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalised: tuple[int, ...] = ()
    biased: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    reported: tuple[int, ...] = ()
    tops: tuple[int, ...] = ()

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The row numbers of each kind, in the order of ``sampler.Rows``."""
        return self.hot, self.filtered, self.penalised, self.biased, self.held, self.masked, self.reported

    @property
    def is_plain(self) -> bool:
        """Nothing but temperatures: one kernel draws all rows, whatever the temperatures are."""
        return not any(self.groups[1:])

    @classmethod
    def of(cls, samplings: Sequence[Sampling], outputs: Sequence[int], masked: Sequence[int] = ()) -> "Draw":
        """Describe rows with these sampling constants that draw output tokens number ``outputs``, some ``masked``."""
        numbered = list(enumerate(samplings))
        hot = [row for row, one in numbered if heat(one) > 0]
        wanted = [samplings[row] for row in hot]
        return cls(
            rows=len(samplings),
            hot=tuple(hot),
            filtered=tuple(place for place, one in enumerate(wanted) if filters(one)),
            top_k=any(one.top_k > 0 for one in wanted),
            top_p=any(one.top_p < 1 for one in wanted),
            min_p=any(one.min_p > 0 for one in wanted),
            penalised=tuple(row for row, one in numbered if penalises(one)),
            biased=tuple(row for row, one in numbered if one.logit_bias),
            held=tuple(row for row, one in numbered if one.stop_ids and outputs[row] < one.min_tokens),
            masked=tuple(masked),
            reported=tuple(row for row, one in numbered if one.logprobs >= 0),
            tops=tuple(one.logprobs for one in samplings if one.logprobs >= 0),
        )


def heat(sampling: Sampling) -> float:
    """The temperature by which scores are divided; 0 is greedy."""
    return sampling.temperature if sampling.temperature >= COLDEST else 0.0


def penalises(sampling: Sampling) -> bool:
    """Whether the draw depends on what came before."""
    return sampling.repetition_penalty != 1 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def filters(sampling: Sampling) -> bool:
    """Whether some of the vocabulary is cut off."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
