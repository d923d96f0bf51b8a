"""Tiny models of other families with random weights, written by transformers, and how their logits are judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from bireme.wire.plan import Sampling
from tests.support.generation import Request, generate
from tests.support.oracle import Oracle
from tests.support.rank_threads import threaded_ranks

VOCABULARY: Final = 131
LAYERS: Final[dict[str, Any]] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": VOCABULARY,
}
GPT2: Final[dict[str, Any]] = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 160, "vocab_size": VOCABULARY}
OPT: Final[dict[str, Any]] = {**LAYERS, "ffn_dim": 80, "max_position_embeddings": 160, "word_embed_proj_dim": 48}
BLOOM: Final[dict[str, Any]] = {"hidden_size": 48, "n_layer": 2, "n_head": 6, "vocab_size": VOCABULARY}
EXPERTS: Final[dict[str, Any]] = {
    **LAYERS,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 160,
}
QWEN3: Final[dict[str, Any]] = {
    "intermediate_size": 72,
    "moe_intermediate_size": 40,
    "num_experts": 6,
    "head_dim": 16,
    "norm_topk_prob": True,
}
ENDS: Final[dict[str, Any]] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
MODELS: Final[dict[str, Callable[[], Any]]] = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, **ENDS)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**OPT, **ENDS)),
    "opt, norms last, untied": lambda: OPTForCausalLM(
        OPTConfig(**OPT, **ENDS, do_layer_norm_before=False, tie_word_embeddings=False)
    ),
    "bloom": lambda: BloomForCausalLM(BloomConfig(**BLOOM, **ENDS)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**EXPERTS, **ENDS, intermediate_size=72, num_local_experts=4)),
    "qwen3 experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**EXPERTS, **QWEN3, **ENDS)),
}


def written(directory: Path, make: Callable[[], Any]) -> Any:
    """A model of which no weight is a plain zero or one, saved in ``directory``."""
    torch.manual_seed(5)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return model


def prompts() -> list[list[int]]:
    torch.manual_seed(11)
    return [torch.randint(4, VOCABULARY, (length,)).tolist() for length in (1, 2, 16, 17, 90)]


def judge(source: Path, model: Any, tensor: int, stages: int, steps: int = 6, **changes: Any) -> None:
    """Greedy ids by the oracle; logits against float64, with three times the error of transformers' float32."""
    requests = [Request(prompt, steps, Sampling(logprobs=VOCABULARY)) for prompt in prompts()]
    with threaded_ranks(source, tensor, stages, **changes) as ranks:
        generate(ranks, requests, chunk=40)
    oracle = Oracle(model)
    exact = type(model)(model.config).double().eval()
    exact.load_state_dict(model.state_dict())
    exact.set_experts_implementation("eager")  # the default one knows no float64
    for request in requests:
        oracle.judge(request.prompt, request.outputs)
        ids = torch.tensor([[*request.prompt, *request.outputs[:-1]]])
        with torch.inference_mode():
            reference = exact(ids).logits[0, -steps:].log_softmax(-1)
            theirs = model(ids).logits[0, -steps:].double().log_softmax(-1)
        allowed = 3 * (theirs - reference).abs().max().clamp(min=2e-7)
        assert (_rows(request) - reference).abs().max() <= allowed
    oracle.verdict.check()


def _rows(request: Request) -> torch.Tensor:
    rows = torch.empty(len(request.logprobs), VOCABULARY, dtype=torch.float64)
    for step, reported in enumerate(request.logprobs):
        assert reported is not None
        ids, values = zip(*reported.top, strict=True)
        rows[step, list(ids)] = torch.tensor(values, dtype=torch.float64)
    return rows
