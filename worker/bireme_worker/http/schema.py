"""The request bodies, one model per route. A field's description is the remedy that a refusal quotes.

Types are strict (`"5"` is no number, `true` is no integer) and unknown fields are refused by name. A null means that
the field was left out, as OpenAI's own clients take it.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from bireme_worker.http.unbuilt import without_neutral

MAX_CHOICES: Final = 128
MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 1000
MAX_IDS: Final = 1024
"""Entries of logit_bias and of stop_token_ids."""
_SEED_MASK: Final = 2**64 - 1


def wrong(message: str) -> PydanticCustomError:
    """An error whose message is ours, word for word (braces would be read as a template)."""
    return PydanticCustomError("bireme", "{text}", {"text": message})


def _strings(value: object) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise wrong(f"has {len(stops)} strings, the most is {MAX_STOPS}")
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise wrong(f"has an empty string, or one longer than {MAX_STOP_LENGTH} characters")
    return stops


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(value: object) -> str | list[int]:
    """OpenAI takes lists of prompts too; one prompt per request is what we serve."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > 1 and all(isinstance(prompt, str | list) for prompt in value):
        raise wrong(f"has {len(value)} prompts, and several prompts in one request are not built yet: send one each")
    if not isinstance(value, list) or not value or not all(_is_id(token) for token in value):
        raise wrong("must be a string, a list of one string, or a list of token ids")
    return value


def _biases(value: object) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > MAX_IDS:
        raise wrong(f"must be an object of at most {MAX_IDS} token ids with a bias each")
    return dict(_bias(token, bias) for token, bias in value.items())


def _bias(token: str, bias: object) -> tuple[int, float]:
    if not (token.isascii() and token.isdigit() and len(token) < 10):
        raise wrong(f"has the key {token[:40]!r}, which is no token id")
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise wrong(f"has a bias for token {token} that is no number from -100 to 100")
    return int(token), float(bias)


def _seed(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong("must be an integer")
    return value & _SEED_MASK


def _content(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong("must be a string or a list of text parts")
    return "\n".join(_part(part) for part in value)


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise wrong(f"has a part of type {kind[:40]!r}, which is not built yet: only text parts are")
    if not isinstance(part, dict) or kind != "text" or part.keys() != {"type", "text"}:
        raise wrong('must be a string or a list of parts like {"type": "text", "text": "…"}')
    if not isinstance(part["text"], str):
        raise wrong("has a part whose text is no string")
    return part["text"]


def _role(value: object) -> object:
    if value in ("tool", "function"):
        raise wrong(f"{value!r} is not built yet: use system, developer, user or assistant")
    return value


def _checked(function: Callable[[Any], object]) -> PlainValidator:
    return PlainValidator(function)


class Body(BaseModel):
    """Base of everything that a client sends."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_neutral(value)
        return {name: part for name, part in given.items() if part is not None or name not in cls.model_fields}


class Message(Body):
    """One message of a chat."""

    role: Annotated[Literal["system", "developer", "user", "assistant"], BeforeValidator(_role)]
    content: Annotated[str, _checked(_content)]
    name: str | None = Field(None, max_length=256)


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class GenerationBody(Body):
    """What chat and completions have in common."""

    model: str = Field(max_length=512, description="Name one of the models of /v1/models.")
    max_tokens: int | None = Field(
        None, ge=1, description="Ask for at least 1 token, or leave it out to use the rest of the context."
    )
    temperature: float = Field(1.0, ge=0, le=2, description="0 is greedy, 1 is the model's own distribution.")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off; use temperature 0 for greedy.")
    top_k: int = Field(0, ge=-1, description="0 or -1 is off.")
    min_p: float = Field(0.0, ge=0, le=1, description="0 is off.")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="1 is off.")
    seed: Annotated[int | None, _checked(_seed)] = Field(None, description="Leave it out for a random one.")
    stop: Annotated[list[str], _checked(_strings)] = Field([], description="At most 16 texts that end the output.")
    stop_token_ids: list[int] = Field([], max_length=MAX_IDS, description="Token ids that end the output.")
    min_tokens: int = Field(0, ge=0, description="No end token is drawn before this many tokens.")
    ignore_eos: bool = Field(False, description="true lets the output run past the model's own end token.")
    logit_bias: Annotated[dict[int, float], _checked(_biases)] = Field({}, description='Like {"50256": -100}.')
    stream: bool = Field(False, description="true sends server-sent events.")
    stream_options: StreamOptions | None = Field(None, description='{"include_usage": true}, only with stream.')
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Choices to draw.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served first.")
    return_token_ids: bool = Field(False, description="true adds prompt_token_ids and each choice's token_ids.")
    # Harmless fields of OpenAI's: they change nothing about the answer here.
    user: str | None = Field(None, max_length=1024)
    metadata: dict[str, str] | None = Field(None, max_length=16)
    store: Literal[False] = Field(False, description="Nothing is stored: leave it out.")
    service_tier: Literal["auto", "default"] = Field("auto", description="There is one tier: leave it out.")
    safety_identifier: str | None = Field(None, max_length=1024)
    prompt_cache_key: str | None = Field(None, max_length=1024)

    @model_validator(mode="after")
    def _agree(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options is only allowed with stream: true")
        return self


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, description='Like [{"role": "user", "content": "Hello"}].')
    max_completion_tokens: int | None = Field(
        None, ge=1, description="Ask for at least 1 token, or leave it out to use the rest of the context."
    )
    logprobs: bool = Field(False, description="true returns the log probability of each token.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs logprobs: true.")
    parallel_tool_calls: bool = Field(True, description="Without tools it has no effect.")

    @model_validator(mode="after")
    def _agree_in_chat(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise wrong("max_tokens and max_completion_tokens differ: send only max_completion_tokens")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens to generate, None for the rest of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprobs_wanted(self) -> int:
        """As in ``plan.Sampling``: -1 is off."""
        return (self.top_logprobs or 0) if self.logprobs else -1


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[int], _checked(_prompt)] = Field(description="A text or its token ids.")
    logprobs: int | None = Field(None, ge=0, le=5, description="How many of the likeliest tokens to return, 0 to 5.")

    @property
    def limit(self) -> int | None:
        """Most tokens to generate, None for the rest of the context."""
        return self.max_tokens

    @property
    def logprobs_wanted(self) -> int:
        """As in ``plan.Sampling``: -1 is off."""
        return -1 if self.logprobs is None else self.logprobs


class TokenizeBody(Body):
    """`POST /tokenize`: a chat or a text."""

    model: str = Field(max_length=512, description="Name one of the models of /v1/models.")
    prompt: str | None = Field(None, description="Send either prompt or messages.")
    messages: list[Message] | None = Field(None, min_length=1, description="Send either prompt or messages.")
    add_special_tokens: bool = Field(True, description="Put the model's first token before a prompt.")

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise wrong("send either prompt or messages")
        return self


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str = Field(max_length=512, description="Name one of the models of /v1/models.")
    tokens: list[int] = Field(description="Token ids.")
