"""How to draw, in the words that vLLM's users know."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import PydanticCustomError

from bireme.wire.plan import Sampling
from bireme_worker.http.forms import read_structured_outputs
from bireme_worker.llm.errors import InvalidInput

_SEED_MASK: Final = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """Constants of a request.

    Attributes:
        n: choices per prompt.
        temperature: 0 takes the likeliest token. ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 are off.
        max_tokens: the most tokens of a choice; None takes all the room that the context leaves.
        stop: strings that end a choice and are not part of its text. ``stop_token_ids`` do the same for ids.
        seed: repeats the draws; None takes a random one.
        logprobs: None for none, else how many alternatives come with each token's own.
        prompt_logprobs: None for none, else how many alternatives come with each token of the prompt.
        structured_outputs: the form of the text, one of ``{"json": schema}``, ``{"json_object": True}``,
            ``{"regex": …}``, ``{"choice": […]}`` and ``{"grammar": …}``; None leaves it free.
        speculate: draft tokens if the engine does so; the draws are the same either way.
        ignore_eos: go on behind the model's own end ids.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Mapping[str, Any] | None = None
    speculate: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidInput(f"n is {self.n}: ask for at least one choice")
        if any(not stop for stop in self.stops):
            raise InvalidInput("stop has an empty string: leave it out")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidInput(f"min_tokens is {self.min_tokens}, more than max_tokens ({self.max_tokens}): lower it")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def grammar(self) -> str:
        """What binds the text, "" for nothing.

        Raises:
            InvalidInput: the form can't be used; says why.
        """
        if self.structured_outputs is None:
            return ""
        try:
            return read_structured_outputs(self.structured_outputs).grammar
        except PydanticCustomError as error:
            raise InvalidInput(f"structured_outputs {error.message()}") from error

    def sampling(self, eos_ids: frozenset[int]) -> Sampling:
        """As the engine wants it, for choice 0."""
        ends = frozenset() if self.ignore_eos else eos_ids
        return Sampling(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=dict(self.logit_bias),
            seed=secrets.randbits(64) if self.seed is None else self.seed & _SEED_MASK,
            logprobs=-1 if self.logprobs is None else self.logprobs,
            prompt_logprobs=-1 if self.prompt_logprobs is None else self.prompt_logprobs,
            min_tokens=self.min_tokens,
            stop_ids=tuple(sorted({*ends, *self.stop_token_ids})),
        )
