"""What a quantized model must answer, by transformers: dense weights, and inputs rounded to fp8 before each layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from bireme.wire.plan import Sampling
from tests.support.generation import Request, generate
from tests.support.rank_threads import threaded_ranks

VOCABULARY = 131
STEPS = 4
LENGTHS = (1, 17, 60)


def answers(source: Path, tensor: int = 1, stages: int = 1, **changes: Any) -> list[tuple[list[int], torch.Tensor]]:
    """For each prompt: its ids and outputs but the last, and our log-softmax at the last ``STEPS`` places."""
    torch.manual_seed(11)
    prompts = [torch.randint(0, VOCABULARY, (length,)).tolist() for length in LENGTHS]
    requests = [Request(prompt, STEPS, Sampling(logprobs=VOCABULARY)) for prompt in prompts]
    with threaded_ranks(source, tensor, stages, **changes) as ranks:
        generate(ranks, requests, chunk=40)
    return [([*one.prompt, *one.outputs[:-1]], _rows(one)) for one in requests]


def _rows(request: Request) -> torch.Tensor:
    rows = torch.empty(STEPS, VOCABULARY, dtype=torch.float64)
    for step, reported in enumerate(request.logprobs):
        assert reported is not None
        ids, values = zip(*reported.top, strict=True)
        rows[step, list(ids)] = torch.tensor(values, dtype=torch.float64)
    return rows


def expected(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, -STEPS:]
    return logits.double().log_softmax(-1)


def farthest(model: LlamaForCausalLM, found: list[tuple[list[int], torch.Tensor]]) -> float:
    """The largest difference of a log-probability."""
    return max(float((ours - expected(model, ids)).abs().max()) for ids, ours in found)


def typical(model: LlamaForCausalLM, found: list[tuple[list[int], torch.Tensor]]) -> float:
    """The mean difference of a log-probability."""
    return sum(float((ours - expected(model, ids)).abs().mean()) for ids, ours in found) / len(found)


def equals_rounded_inputs(
    model: LlamaForCausalLM, found: list[tuple[list[int], torch.Tensor]], static: float | None = None
) -> bool:
    """Whether inputs were rounded as the reference does.

    A value within float32 noise of the middle between two fp8 values may be rounded either way, so a few differ; the
    measure is how far the unrounded reference is away.
    """
    unrounded = typical(model, found)
    with fp8_inputs(model, static):
        return typical(model, found) < unrounded / 5


@contextmanager
def fp8_inputs(model: LlamaForCausalLM, static: float | None = None) -> Iterator[None]:
    """Round the inputs of every linear layer but the head, per token or by one scale."""

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (x,) = inputs
        scale = x.abs().amax(-1, keepdim=True) / 448 if static is None else torch.tensor(static)
        return ((x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale,)

    layers = [module for name, module in model.named_modules() if name.endswith("_proj")]
    hooks = [layer.register_forward_pre_hook(rounded) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
