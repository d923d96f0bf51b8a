"""The kinds of requests that a soak mixes, what a client sees of each, and how each is judged.

Every answer must be complete, have the ids that the oracle would draw, the text of exactly these ids (cut at the stop
string), log probabilities for each id, and the right totals: whatever happened to the processes meanwhile.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import msgspec

from bireme.wire.plan import Sampling
from tests.faults import formed
from tests.support.oracle import Oracle
from tests.support.streams import PROMPTS

LIMIT_S = 180.0
AGAIN_AT_ONCE = 4
STREAMED = ("greedy", "sampled", "n", "stop", "penalties", "logprobs")
KINDS = (*STREAMED, "unary", *formed.KINDS)
GOING_ON = "+"
"""Joins the revisions of a stream that a reload in mode `restart` carried over; the last one drew the event's ids."""


class Text(Protocol):
    """As much of a text model as judging needs."""

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class Choice:
    """What came of one choice. ``named``: for each id the revision that its event names."""

    ids: list[int] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    logprobs: list[float] = field(default_factory=list)
    calls: dict[int, formed.Call] = field(default_factory=dict)


@dataclass
class Ask:
    """One request and its answer. ``error`` is set when the client was told of a failure or heard nothing."""

    kind: str
    body: dict[str, Any]
    sampling: Sampling
    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, Choice] = field(default_factory=dict)
    response_ids: set[str] = field(default_factory=set)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def label(self) -> str:
        return f"{self.kind}: seed {self.sampling.seed}: {self.body['messages'][0]['content'][:40]}"

    @property
    def delivered(self) -> int:
        """Ids that have come so far."""
        return sum(len(choice.ids) for choice in self.choices.values())


def make(kind: str, model: str, dice: random.Random, tokens: int) -> Ask:
    """A request of that kind; everything random comes from ``dice``."""
    seed = dice.getrandbits(48)
    sampled: dict[str, Any] = {"temperature": round(dice.uniform(0.5, 1.1), 2), "seed": seed}
    own: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "sampled": {**sampled, "top_p": 0.95},
        "n": {**sampled, "n": 3},
        "stop": {"temperature": 0.0, "stop": [dice.choice(("and", "ing", "e t", "\n", "the"))]},
        "penalties": {**sampled, "presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
        "logprobs": {"temperature": 0.0, "logprobs": True, "top_logprobs": 2},
        "unary": {**sampled, "stream": False},
    }
    fields = {**sampled, **formed.fields(kind)} if kind in formed.KINDS else own[kind]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{dice.choice(PROMPTS)} ({dice.randrange(1000)})"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        **fields,
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed")
    return Ask(kind, body, Sampling(**{name: fields[name] for name in names if name in fields}))


async def run(session: aiohttp.ClientSession, url: str, ask: Ask) -> None:
    """Send it and record the answer; failures become ``ask.error``, since losing one is what a soak looks for."""
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        async with session.post(f"{url}/v1/chat/completions", json=ask.body, timeout=timeout) as response:
            if response.status != 200:
                ask.error = f"{response.status}: {(await response.text())[:300]}"
            elif ask.body["stream"]:
                await _read_events(response, ask)
            else:
                _take(ask, await response.json(), "message")
    except (aiohttp.ClientError, TimeoutError) as error:
        ask.error = repr(error)


async def _read_events(response: aiohttp.ClientResponse, ask: Ask) -> None:
    async for line in response.content:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        if line.startswith(b"data: "):
            event = json.loads(data)
            if "error" in event:
                ask.error = str(event["error"])
                return
            _take(ask, event, "delta")
    ask.error = "the stream ended without [DONE]"


def _take(ask: Ask, event: dict[str, Any], part: str) -> None:
    ask.response_ids.add(event["id"])
    ask.usage = event.get("usage") or ask.usage
    ask.prompt_ids = event.get("prompt_token_ids") or ask.prompt_ids
    for item in event["choices"]:
        choice = ask.choices.setdefault(item["index"], Choice())
        ids = item.get("token_ids") or []
        choice.ids += ids
        choice.named += [event.get("system_fingerprint") or ""] * len(ids)
        choice.text += item[part].get("content") or ""
        formed.take(choice.calls, item[part].get("tool_calls") or [])
        choice.finish = item.get("finish_reason") or choice.finish
        if item.get("logprobs"):
            choice.logprobs += [entry["logprob"] for entry in item["logprobs"]["content"]]


def judge(ask: Ask, oracle: Oracle, text: Text) -> list[str]:
    """What is wrong with a complete answer, besides what the oracle notes itself."""
    wrong = judge_form(ask, text)
    for index, choice in ask.choices.items() if ask.kind not in formed.KINDS else ():
        oracle.judge(ask.prompt_ids, choice.ids, msgspec.structs.replace(ask.sampling, choice=index), ask.label)
    return wrong


def judge_by_revision(ask: Ask, oracles: Mapping[str, Oracle], text: Text) -> list[str]:
    """The same, each id by the weights that its event names."""
    for index, choice in ask.choices.items():
        sampling = msgspec.structs.replace(ask.sampling, choice=index)
        drawn_by = [name.rsplit(GOING_ON)[-1] for name in choice.named]
        begin = 0
        for revision, ids in itertools.groupby(drawn_by):
            end = begin + len(list(ids))
            oracles[revision].judge(ask.prompt_ids, choice.ids[:end], sampling, ask.label, first=begin)
            begin = end
    return judge_form(ask, text)


def again(ask: Ask) -> Ask:
    """The same request once more, for when nothing disturbs it."""
    return Ask(ask.kind, ask.body, ask.sampling)


async def compare_again(session: aiohttp.ClientSession, url: str, asks: Sequence[Ask]) -> list[str]:
    """Send what must have a form once more, a few at a time, and say what differs."""
    turn = asyncio.Semaphore(AGAIN_AT_ONCE)

    async def one(ask: Ask) -> list[str]:
        async with turn:
            undisturbed = again(ask)
            await run(session, url, undisturbed)
            return [f"{ask.label}: {undisturbed.error}"] if undisturbed.error else compare(ask, undisturbed)

    formed_asks = [ask for ask in asks if ask.kind in formed.KINDS and not ask.error]
    return [wrong for found in await asyncio.gather(*map(one, formed_asks)) for wrong in found]


def compare(ask: Ask, undisturbed: Ask) -> list[str]:
    """What differs between two answers to one request."""
    pairs = zip(sorted(ask.choices.items()), sorted(undisturbed.choices.items()), strict=False)
    return [
        f"{ask.label}: {one.ids} {one.text!r} {one.finish}, undisturbed {other.ids} {other.text!r} {other.finish}"
        for (_, one), (_, other) in pairs
        if (one.ids, one.text, one.finish) != (other.ids, other.text, other.finish)
    ]


def judge_form(ask: Ask, text: Text) -> list[str]:
    """What is wrong with a complete answer, whatever weights drew it."""
    wrong = [f"{len(ask.response_ids)} response ids"] if len(ask.response_ids) != 1 else []
    wanted = ask.body.get("n", 1)
    if sorted(ask.choices) != list(range(wanted)):
        return [*wrong, f"choices {sorted(ask.choices)} of {wanted}"]
    if ask.usage.get("completion_tokens") != ask.delivered or ask.usage.get("prompt_tokens") != len(ask.prompt_ids):
        wrong.append(f"usage {ask.usage}, but {len(ask.prompt_ids)} prompt and {ask.delivered} output ids came")
    for choice in ask.choices.values():
        wrong += _judge_choice(ask, choice, text)
    return [f"{ask.label}: {what}" for what in wrong]


def _judge_choice(ask: Ask, choice: Choice, text: Text) -> list[str]:
    if ask.kind in formed.KINDS:
        return formed.judge(ask.kind, choice.text, choice.finish, choice.calls)
    whole, stops = text.decode(choice.ids), ask.body.get("stop", [])
    places = [whole.find(stop) for stop in stops if stop in whole]
    due, finish = (whole[: min(places)], "stop") if places else (whole, "length")
    wrong = []
    if (choice.text, choice.finish) != (due, finish):
        wrong.append(f"text {choice.text!r} ({choice.finish}), its ids say {due!r} ({finish})")
    if not places and len(choice.ids) != ask.body["max_tokens"]:
        wrong.append(f"{len(choice.ids)} ids of {ask.body['max_tokens']}")
    if ask.kind == "logprobs" and len(choice.logprobs) != len(choice.ids):
        wrong.append(f"{len(choice.logprobs)} log probabilities for {len(choice.ids)} ids")
    return wrong
