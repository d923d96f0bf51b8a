"""A checked body becomes a ``Generation``: what the engine is asked for, whatever the route.

Here a request is measured against the model: ids against the vocabulary, lengths against the context. What passes is
something that the engine can compute.
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from bireme.wire.journal import Resume, ResumedChoice
from bireme.wire.plan import Sampling
from bireme.wire.requests import Limits
from bireme_worker.http.errors import Conflict, InvalidRequest
from bireme_worker.http.output_form import FREE, OutputForm, form_of_chat, form_of_text
from bireme_worker.http.schema import ChatBody, CompletionBody
from bireme_worker.http.service import Caller, Service

_SEED_MASK: Final = 2**64 - 1


Prompts = list[list[int]]


@dataclass(frozen=True)
class Generation:
    """One request. ``resumed`` has what an earlier attempt delivered, by choice; ``revision`` is the one it needs.

    ``drawn`` choices are drawn for each prompt and ``kept`` of them are sent, prompt by prompt. ``rooms`` and
    ``echoes`` are by prompt: most tokens to draw, and the text to put before them.
    """

    request_id: str
    created: int
    prompts: Prompts
    drawn: int
    kept: int
    sampling: Sampling
    rooms: tuple[int, ...]
    stops: tuple[str, ...]
    priority: int
    journal: bool
    include_usage: bool
    return_ids: bool
    revision: str | None
    resumed: dict[int, ResumedChoice]
    adapter: str = ""
    speculate: bool = True
    form: OutputForm = FREE
    echoes: tuple[str, ...] = ()
    logprobs: int = -1
    prompt_logprobs: int = -1

    @property
    def prompt(self) -> list[int]:
        """The prompt of a request that has one; of several nobody needs to be told, they are the request's own."""
        return self.prompts[0] if len(self.prompts) == 1 else []

    @property
    def draws(self) -> int:
        """Choices that are drawn in all."""
        return len(self.prompts) * self.drawn

    @property
    def choices(self) -> int:
        """Choices that are sent in all."""
        return len(self.prompts) * self.kept

    def prompt_of(self, draw: int) -> list[int]:
        """The ids before a drawn choice."""
        return self.prompts[draw // self.drawn]

    def room_of(self, draw: int) -> int:
        """How many tokens it may have."""
        return self.rooms[draw // self.drawn]

    def echo_of(self, draw: int) -> str:
        """The text that is sent before it."""
        return self.echoes[draw // self.drawn] if self.echoes else ""

    def sampling_of(self, draw: int) -> Sampling:
        """The choice keys the noise, so that each prompt is answered as if it came alone; the rest is shared."""
        resumed = self.resumed.get(draw)
        told = resumed is not None and bool(resumed.output_token_ids)
        scored = -1 if told else self.sampling.prompt_logprobs
        return msgspec.structs.replace(self.sampling, choice=draw % self.drawn, prompt_logprobs=scored)

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token comes with its log probability."""
        return self.logprobs >= 0


async def plan_generation(
    service: Service, caller: Caller, body: ChatBody | CompletionBody, encode: Callable[[], Awaitable[Prompts]]
) -> Generation:
    """Measure a request against the model. ``encode`` makes the prompts' ids; a resumed stream brings them along.

    Raises:
        ApiError: no such model, not serving, ids outside the vocabulary, too long, or not resumable here.
    """
    service.require_model(body.model)
    service.require_text(body.model)
    service.require_ids("logit_bias", body.logit_bias)
    service.require_ids("stop_token_ids", body.stop_token_ids)
    _check_counts(caller, body)
    serving = service.link.require_serving()
    best_of = body.best_of if isinstance(body, CompletionBody) else None
    drawn = body.n if best_of is None else best_of
    extension = caller.extension
    resume = None if extension is None else extension.resume
    if resume is not None and resume.prompt_token_ids:
        prompts = [resume.prompt_token_ids]
    else:
        prompts = [_cut(prompt, body, serving.limits.context) for prompt in await encode()]
    _check_choices(drawn, len(prompts), serving.limits)
    if resume is not None:
        _check_resume(service, resume, serving.model_revision, body.n * len(prompts))
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    for prompt in prompts:
        service.require_ids(field, prompt)
    rooms = tuple(_room(len(prompt), body, serving.limits) for prompt in prompts)
    if isinstance(body, ChatBody):
        form = await form_of_chat(service.text, body, prompts[0])
    else:
        form = await form_of_text(service.text, body)
    echo = isinstance(body, CompletionBody) and body.echo
    return Generation(
        request_id=caller.request_id,
        created=int(time.time()) if extension is None else extension.created,
        prompts=prompts,
        drawn=drawn,
        kept=body.n,
        sampling=_sampling(service, caller, body),
        rooms=rooms,
        stops=tuple(body.stop),
        priority=body.priority,
        journal=caller.journal,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        return_ids=body.return_token_ids,
        revision=None if resume is None else resume.model_revision,
        resumed={} if resume is None else {choice.index: choice for choice in resume.choices},
        adapter=service.adapter_of(body.model),
        speculate=body.speculate,
        form=form,
        echoes=tuple(service.text.decode(prompt) for prompt in prompts) if echo else (),
        logprobs=body.logprobs_wanted,
        prompt_logprobs=-1 if body.prompt_logprobs is None else body.prompt_logprobs,
    )


def _cut(prompt: list[int], body: ChatBody | CompletionBody, context: int) -> list[int]:
    """The end of a prompt that may be cut at its beginning."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompt
    if most < 0:
        most = context - max(body.limit or 1, body.min_tokens)
    return prompt[-max(most, 1) :]


def _check_counts(caller: Caller, body: ChatBody | CompletionBody) -> None:
    if caller.journal and not body.stream:
        raise InvalidRequest("a journal needs stream: true", param="stream")
    if body.limit is not None and body.min_tokens > body.limit:
        raise InvalidRequest(
            f"min_tokens is {body.min_tokens}, more than max_tokens ({body.limit}): lower it",
            param="min_tokens",
        )


def _check_choices(drawn: int, prompts: int, limits: Limits) -> None:
    most = limits.running + limits.queue
    if drawn * prompts > most:
        asked = f"n (or best_of) is {drawn}" + (f" for each of {prompts} prompts" if prompts > 1 else "")
        raise InvalidRequest(f"{asked}, and this group holds {most} choices at a time: ask for fewer", param="n")


def _sampling(service: Service, caller: Caller, body: ChatBody | CompletionBody) -> Sampling:
    ends = () if body.ignore_eos else service.text.eos_ids
    return Sampling(
        temperature=body.temperature,
        top_k=min(max(body.top_k, 0), service.vocabulary),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        logit_bias=body.logit_bias,
        seed=_seed(caller, body.seed),
        logprobs=max(body.logprobs_wanted, 0) if _compares(body) else body.logprobs_wanted,
        prompt_logprobs=_prompt_scores(body),
        min_tokens=body.min_tokens,
        stop_ids=tuple(sorted({*ends, *body.stop_token_ids})),
    )


def _compares(body: ChatBody | CompletionBody) -> bool:
    """Whether choices are compared by their log probability."""
    return isinstance(body, CompletionBody) and body.best_of is not None and body.best_of > body.n


def _prompt_scores(body: ChatBody | CompletionBody) -> int:
    """How many of the likeliest ids to tell for each prompt token; -1: none is scored."""
    echoed = body.logprobs_wanted if isinstance(body, CompletionBody) and body.echo else -1
    return max(echoed, -1 if body.prompt_logprobs is None else body.prompt_logprobs)


def _seed(caller: Caller, given: int | None) -> int:
    if given is not None:
        return given
    return secrets.randbits(64) if caller.extension is None else caller.extension.seed & _SEED_MASK


def _room(prompt: int, body: ChatBody | CompletionBody, limits: Limits) -> int:
    """How many tokens may be generated.

    Raises:
        InvalidRequest: prompt and output can't fit the context; has all the numbers.
    """
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    if prompt == 0:
        raise InvalidRequest(f"{field} has no tokens: send some text", param=field)
    context, room = limits.context, limits.context - prompt
    if room < 1:
        raise InvalidRequest(
            f"{field} has {prompt} tokens and the context has {context}, with room for at least one token of output: "
            f"shorten it to {context - 1} tokens{limits.remedy(prompt + 1)}",
            param=field,
        )
    wanted = max(body.limit or 1, body.min_tokens)
    if wanted > room:
        name = "max_tokens" if body.limit is not None else "min_tokens"
        raise InvalidRequest(
            f"{name} is {wanted}, the prompt has {prompt} tokens and the context {context}: ask for at most {room}"
            f"{limits.remedy(prompt + wanted)}",
            param=name,
        )
    return room if body.limit is None else body.limit


def _check_resume(service: Service, resume: Resume, revision: str, choices: int) -> None:
    if resume.model_revision != revision:
        raise wrong_revision(resume.model_revision, revision)
    service.require_ids("bireme.resume.prompt_token_ids", resume.prompt_token_ids)
    seen = [choice.index for choice in resume.choices]
    if len(set(seen)) < len(seen) or not all(0 <= index < choices for index in seen):
        raise InvalidRequest(f"bireme.resume.choices has indices {seen}, n is {choices}", param="bireme")
    for choice in resume.choices:
        service.require_ids("bireme.resume.choices.output_token_ids", choice.output_token_ids)


def wrong_revision(began: str, here: str) -> Conflict:
    """The error for a stream that another checkpoint began."""
    return Conflict(
        f"the stream was begun by model revision {began!r} and this group serves {here!r}: "
        "resume it on a group with the first one"
    )
