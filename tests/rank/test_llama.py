"""Logits of the whole rank path against transformers in float64.

The rule of the design, 6.6: our error is at most three times the error of transformers' own float32 run.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from bireme.wire.plan import Sampling
from tests.checkpoints.tiny import LLAMA3, save_tiny
from tests.support.generation import Request, generate
from tests.support.rank_threads import threaded_ranks

VOCABULARY = 131
TP_PP = [(1, 1), (2, 1), (1, 2), (2, 2)]
LONG_ROPE = {**LLAMA3, "original_max_position_embeddings": 64}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "tied embeddings": {"tie_word_embeddings": True},
    "rope llama3": {"rope_parameters": LONG_ROPE},
    "one key-value head each": {"num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
}


def prompts() -> list[list[int]]:
    torch.manual_seed(11)
    return [torch.randint(0, VOCABULARY, (length,)).tolist() for length in (1, 2, 15, 16, 17, 100)]


def distributions(source: Path, tensor: int, stages: int, steps: int = 6) -> list[tuple[list[int], torch.Tensor]]:
    """For each prompt: prompt + outputs but the last, and the log-softmax at the last ``steps`` positions."""
    requests = [Request(prompt, steps, Sampling(logprobs=VOCABULARY)) for prompt in prompts()]
    with threaded_ranks(source, tensor, stages) as ranks:
        generate(ranks, requests, chunk=40)
    results = []
    for request in requests:
        rows = torch.empty(steps, VOCABULARY, dtype=torch.float64)
        for step, reported in enumerate(request.logprobs):
            assert reported is not None
            ids, values = zip(*reported.top, strict=True)
            rows[step, list(ids)] = torch.tensor(values, dtype=torch.float64)
        results.append(([*request.prompt, *request.outputs[:-1]], rows))
    return results


def check(model: LlamaForCausalLM, results: list[tuple[list[int], torch.Tensor]]) -> None:
    exact = LlamaForCausalLM(model.config).double().eval()
    exact.load_state_dict(model.state_dict())
    for ids, ours in results:
        with torch.inference_mode():
            reference = exact(torch.tensor([ids])).logits[0, -len(ours) :].log_softmax(-1)
            theirs = model(torch.tensor([ids])).logits[0, -len(ours) :].double().log_softmax(-1)
        allowed = 3 * (theirs - reference).abs().max().clamp(min=2e-7)
        assert (ours - reference).abs().max() <= allowed


@pytest.mark.parametrize(("tensor", "stages"), TP_PP)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_are_as_exact_as_those_of_transformers(tmp_path: Path, name: str, tensor: int, stages: int) -> None:
    model = save_tiny(tmp_path, **CONFIGURATIONS[name])
    check(model, distributions(tmp_path, tensor, stages))


HEADS = [(6, 6), (6, 3), (6, 2), (6, 1), (12, 4)]


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("tensor", [2, 3, 6])
def test_t15_any_heads_and_key_value_heads_on_any_number_of_ranks(
    tmp_path: Path, heads: int, kv_heads: int, tensor: int
) -> None:
    model = save_tiny(tmp_path, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8, hidden_size=48)
    check(model, distributions(tmp_path, tensor, 1, steps=3))
