"""The request bodies, one model per route. A field's description is the remedy that a refusal quotes.

Types are strict (`"5"` is no number, `true` is no integer) and unknown fields are refused by name. A null means that
the field was left out, as OpenAI's own clients take it.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from bireme_worker.http.bodies import Body, checked
from bireme_worker.http.forms import Form, guided, only_one, read_response_format, read_structured_outputs
from bireme_worker.http.remedies import wrong
from bireme_worker.http.tools import MOST_TOOLS, Call, Tool, ToolChoice, check_tools

MAX_CHOICES: Final = 128
MAX_PROMPTS: Final = 1024
MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 1000
MAX_IDS: Final = 1024
"""Entries of logit_bias and of stop_token_ids."""
_SEED_MASK: Final = 2**64 - 1


def _strings(value: object) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise wrong(f"has {len(stops)} strings, the most is {MAX_STOPS}")
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise wrong(f"has an empty string, or one longer than {MAX_STOP_LENGTH} characters")
    return stops


def is_id(value: object) -> bool:
    """Whether it is an integer; `true` is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(value: object) -> list[str | list[int]]:
    """One prompt as a text or as ids, or a list of either."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(is_id(token) for token in value)):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong("must be a text, a list of token ids, or a list of either")
    if len(value) > MAX_PROMPTS:
        raise wrong(f"has {len(value)} prompts, the most is {MAX_PROMPTS}")
    if not all(_is_prompt(prompt) for prompt in value):
        raise wrong("has a prompt that is neither a text nor a list of token ids")
    return value


def _is_prompt(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(is_id(token) for token in value))


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
    if value == "function":
        raise wrong("'function' is not offered: use tool")
    return value


class Message(Body):
    """One message of a chat."""

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_role)]
    content: Annotated[str | None, checked(_content)] = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[Call] = Field([], max_length=MOST_TOOLS)
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _agree_in_message(self) -> "Message":
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content is not None):
            raise wrong("has tool_calls or reasoning_content, which only an assistant's message may have")
        if self.content is None and not self.tool_calls:
            raise wrong("has no content: send a text")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise wrong("must have a tool_call_id if, and only if, its role is tool")
        return self


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class GenerationBody(Body):
    """What chat and completions have in common."""

    model: str = Field(max_length=512, description="Name one of the models of /v1/models.")
    max_tokens: int | None = Field(
        None, ge=1, description="Ask for at least 1 token, or leave it out to use the rest of the context."
    )
    response_format: Annotated[Form | None, checked(read_response_format)] = None
    structured_outputs: Annotated[Form | None, checked(read_structured_outputs)] = None
    guided_json: Annotated[Form | None, checked(guided("json"))] = None
    guided_regex: Annotated[Form | None, checked(guided("regex"))] = None
    guided_choice: Annotated[Form | None, checked(guided("choice"))] = None
    guided_grammar: Annotated[Form | None, checked(guided("grammar"))] = None
    prompt_logprobs: int | None = Field(None, ge=0, le=20, description="Likeliest ids per prompt token, 0 to 20.")
    truncate_prompt_tokens: int | None = Field(None, ge=-1, description="Keep this many last tokens; -1: what fits.")
    temperature: float = Field(1.0, ge=0, le=2, description="0 is greedy, 1 is the model's own distribution.")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off; use temperature 0 for greedy.")
    top_k: int = Field(0, ge=-1, description="0 or -1 is off.")
    min_p: float = Field(0.0, ge=0, le=1, description="0 is off.")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    repetition_penalty: float = Field(1.0, ge=0.01, le=10, description="1 is off.")
    seed: Annotated[int | None, checked(_seed)] = Field(None, description="Leave it out for a random one.")
    stop: Annotated[list[str], checked(_strings)] = Field([], description="At most 16 texts that end the output.")
    stop_token_ids: list[int] = Field([], max_length=MAX_IDS, description="Token ids that end the output.")
    min_tokens: int = Field(0, ge=0, description="No end token is drawn before this many tokens.")
    ignore_eos: bool = Field(False, description="true lets the output run past the model's own end token.")
    logit_bias: Annotated[dict[int, float], checked(_biases)] = Field({}, description='Like {"50256": -100}.')
    stream: bool = Field(False, description="true sends server-sent events.")
    stream_options: StreamOptions | None = Field(None, description='{"include_usage": true}, only with stream.')
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Choices to draw.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served first.")
    speculate: bool = Field(True, description="false drafts no tokens for this request; its output is the same.")
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
        if self.truncate_prompt_tokens == 0:
            raise wrong("truncate_prompt_tokens is 0: keep at least one token")
        only_one(self._forms)
        return self

    @property
    def _forms(self) -> list[Form | None]:
        guided = [self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar]
        return [self.response_format, self.structured_outputs, *guided]

    @property
    def form(self) -> Form | None:
        """What form the answer must have."""
        return only_one(self._forms)


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, description='Like [{"role": "user", "content": "Hello"}].')
    max_completion_tokens: int | None = Field(
        None, ge=1, description="Ask for at least 1 token, or leave it out to use the rest of the context."
    )
    logprobs: bool = Field(False, description="true returns the log probability of each token.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs logprobs: true.")
    tools: list[Tool] = Field([], max_length=MOST_TOOLS)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = Field(True, description="false: at most one call where calls are required.")
    chat_template_kwargs: dict[str, Any] = Field({}, description='Like {"enable_thinking": false}.')

    @model_validator(mode="after")
    def _agree_in_chat(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise wrong("max_tokens and max_completion_tokens differ: send only max_completion_tokens")
        check_tools(self.tools, self.tool_choice)
        if self.form is not None and self.tools and self.tool_choice != "none":
            raise wrong(f"{self.form.field} and tools are given: leave out one, or set tool_choice to none")
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

    prompt: Annotated[list[str | list[int]], checked(_prompts)] = Field(description="A text or its token ids.")
    echo: bool = Field(False, description="true puts the prompt before each choice.")
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Draw this many and return the n likeliest.")
    logprobs: int | None = Field(None, ge=0, le=5, description="How many of the likeliest tokens to return, 0 to 5.")

    @model_validator(mode="after")
    def _agree_in_completion(self) -> "CompletionBody":
        if self.best_of is not None and self.best_of < self.n:
            raise wrong(f"best_of is {self.best_of} and n is {self.n}: best_of must be at least n")
        return self

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
    tools: list[Tool] = Field([], max_length=MOST_TOOLS)
    chat_template_kwargs: dict[str, Any] = Field({}, description='Like {"enable_thinking": false}.')
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
