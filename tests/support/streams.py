"""Streams of a real OpenAI client that remember what was delivered, so that the oracle can judge it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from bireme.wire.plan import Sampling
from tests.support.oracle import Oracle, Verdict

PROMPTS = [
    "What is the capital of France?",
    "Tell me a story about a lighthouse keeper.",
    "List five fruits and their colours.",
    "Explain why the sky is blue to a child.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "What happened in the year 1969?",
    "Give me three names for a cat, and why.",
]


@dataclass
class Delivery:
    """Everything that one client saw of one answer."""

    prompt: str
    sampling: Sampling
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    response_ids: set[str] = field(default_factory=set)
    finish_reason: str | None = None
    usage: Any = None

    @property
    def label(self) -> str:
        return f"{'greedy' if self.sampling.temperature == 0 else f'seed {self.sampling.seed}'}: {self.prompt}"


async def stream(
    url: str, delivery: Delivery, max_tokens: int, on_ids: Callable[[int], None] = lambda count: None
) -> Delivery:
    """Ask by the official client and record; ``on_ids`` is told how many ids have come."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        answer = await client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": delivery.prompt}],
            temperature=delivery.sampling.temperature,
            seed=delivery.sampling.seed,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in answer:
            _record(delivery, chunk)
            on_ids(len(delivery.ids))
    return delivery


def _record(delivery: Delivery, chunk: Any) -> None:
    delivery.response_ids.add(chunk.id)
    delivery.usage = chunk.usage or delivery.usage
    delivery.prompt_ids = getattr(chunk, "prompt_token_ids", None) or delivery.prompt_ids
    for choice in chunk.choices:
        delivery.text += choice.delta.content or ""
        delivery.ids += getattr(choice, "token_ids", None) or []
        delivery.finish_reason = choice.finish_reason or delivery.finish_reason


def deliveries(seeded: int, greedy: int, first_seed: int = 1000) -> list[Delivery]:
    """A mixed set of requests: ``greedy`` at temperature 0 and ``seeded`` at 0.9."""
    mixed = [Delivery(PROMPTS[i % len(PROMPTS)], Sampling()) for i in range(greedy)]
    return mixed + [
        Delivery(PROMPTS[i % len(PROMPTS)], Sampling(temperature=0.9, seed=first_seed + i)) for i in range(seeded)
    ]


async def run_all(url: str, wanted: list[Delivery], max_tokens: int, on_total: Callable[[int], None]) -> None:
    """Run all streams at once; ``on_total`` is told how many ids have come in all."""
    counts = [0] * len(wanted)

    def told(index: int) -> Callable[[int], None]:
        def tell(count: int) -> None:
            counts[index] = count
            on_total(sum(counts))

        return tell

    await asyncio.gather(*(stream(url, item, max_tokens, told(index)) for index, item in enumerate(wanted)))


def judge(reference: Any, delivered: list[Delivery], max_tokens: int) -> Verdict:
    """Every answer is whole, under one id, with right usage; the verdict is the oracle's, not yet checked."""
    oracle = Oracle(reference)
    for item in delivered:
        assert item.finish_reason == "length", item.label
        assert len(item.response_ids) == 1, item.label
        assert len(item.ids) == max_tokens, item.label
        assert item.usage.completion_tokens == max_tokens, item.label
        assert item.usage.prompt_tokens == len(item.prompt_ids) > 0, item.label
        oracle.judge(item.prompt_ids, item.ids, item.sampling, item.label)
    return oracle.verdict
