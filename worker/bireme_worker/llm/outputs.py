"""What comes out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CompletionOutput:
    """One choice.

    Attributes:
        index: which of the ``n``.
        text: without the stop string. ``token_ids``: all that were drawn, a stop id included.
        finish_reason: ``stop`` or ``length``. ``stop_reason``: the stop string or stop id, if one ended it.
        logprobs: if asked for, log-probabilities per token by id; the drawn token comes first.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: tuple[dict[int, float], ...] | None = None


@dataclass(frozen=True)
class RequestOutput:
    """One prompt and its choices. ``cached_tokens``: prompt tokens that were in the prefix cache.

    ``prompt_logprobs``: if asked for, log-probabilities per token of the prompt by id, None for the first one.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[dict[int, float] | None, ...] | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.outputs[0].text
