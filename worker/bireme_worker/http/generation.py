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
from bireme_worker.http.schema import ChatBody, CompletionBody
from bireme_worker.http.service import Caller, Service

_SEED_MASK: Final = 2**64 - 1


@dataclass(frozen=True)
class Generation:
    """One request. ``resumed`` has what an earlier attempt delivered, by choice; ``revision`` is the one it needs."""

    request_id: str
    created: int
    prompt: list[int]
    choices: int
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    priority: int
    journal: bool
    include_usage: bool
    return_ids: bool
    revision: str | None
    resumed: dict[int, ResumedChoice]

    def sampling_of(self, choice: int) -> Sampling:
        """The choice keys the noise; everything else is shared."""
        return msgspec.structs.replace(self.sampling, choice=choice)

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token comes with its log probability."""
        return self.sampling.logprobs >= 0


async def plan_generation(
    service: Service, caller: Caller, body: ChatBody | CompletionBody, encode: Callable[[], Awaitable[list[int]]]
) -> Generation:
    """Measure a request against the model. ``encode`` makes the prompt's ids; a resumed stream brings them along.

    Raises:
        ApiError: no such model, not serving, ids outside the vocabulary, too long, or not resumable here.
    """
    service.require_model(body.model)
    service.require_ids("logit_bias", body.logit_bias)
    service.require_ids("stop_token_ids", body.stop_token_ids)
    _check_counts(caller, body)
    serving = service.link.require_serving()
    _check_choices(body.n, serving.limits)
    extension = caller.extension
    resume = None if extension is None else extension.resume
    if resume is not None:
        _check_resume(service, resume, serving.model_revision, body.n)
    prompt = await encode() if resume is None else resume.prompt_token_ids
    service.require_ids("messages" if isinstance(body, ChatBody) else "prompt", prompt)
    return Generation(
        request_id=caller.request_id,
        created=int(time.time()) if extension is None else extension.created,
        prompt=prompt,
        choices=body.n,
        sampling=_sampling(service, caller, body),
        max_tokens=_room(len(prompt), body, serving.limits.context),
        stops=tuple(body.stop),
        priority=body.priority,
        journal=caller.journal,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        return_ids=body.return_token_ids,
        revision=None if resume is None else resume.model_revision,
        resumed={} if resume is None else {choice.index: choice for choice in resume.choices},
    )


def _check_counts(caller: Caller, body: ChatBody | CompletionBody) -> None:
    if caller.journal and not body.stream:
        raise InvalidRequest("a journal needs stream: true", param="stream")
    if body.limit is not None and body.min_tokens > body.limit:
        raise InvalidRequest(
            f"min_tokens is {body.min_tokens}, more than max_tokens ({body.limit}): lower it",
            param="min_tokens",
        )


def _check_choices(wanted: int, limits: Limits) -> None:
    most = limits.running + limits.queue
    if wanted > most:
        raise InvalidRequest(f"n is {wanted}, and this group holds {most} choices at a time: ask for fewer", param="n")


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
        logprobs=body.logprobs_wanted,
        min_tokens=body.min_tokens,
        stop_ids=tuple(sorted({*ends, *body.stop_token_ids})),
    )


def _seed(caller: Caller, given: int | None) -> int:
    if given is not None:
        return given
    return secrets.randbits(64) if caller.extension is None else caller.extension.seed & _SEED_MASK


def _room(prompt: int, body: ChatBody | CompletionBody, context: int) -> int:
    """How many tokens may be generated.

    Raises:
        InvalidRequest: prompt and output can't fit the context; has all the numbers.
    """
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    if prompt == 0:
        raise InvalidRequest(f"{field} has no tokens: send some text", param=field)
    room = context - prompt
    if room < 1:
        raise InvalidRequest(
            f"{field} has {prompt} tokens and the context has {context}, with room for at least one token of output: "
            f"shorten it to {context - 1} tokens",
            param=field,
        )
    wanted = max(body.limit or 1, body.min_tokens)
    if wanted > room:
        name = "max_tokens" if body.limit is not None else "min_tokens"
        raise InvalidRequest(
            f"{name} is {wanted}, the prompt has {prompt} tokens and the context {context}: ask for at most {room}",
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
