"""LoRA adapters as PEFT writes them, and the same merged into a model of transformers as the reference."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
ALL_LINEAR = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def write_adapter(
    directory: Path, model: Any, targets: Sequence[str], *, rank: int, seed: int, rslora: bool = False, **config: Any
) -> Any:
    """Write an adapter for ``model`` (a Llama of transformers); returns the model with the adapter merged in."""
    torch.manual_seed(seed)
    merged, alpha = copy.deepcopy(model), 2 * rank
    tensors: dict[str, torch.Tensor] = {}
    scale = alpha / (rank**0.5 if rslora else rank)
    for number, layer in enumerate(merged.model.layers):
        for target in targets:
            linear = layer.get_submodule(target)
            outputs, inputs = linear.weight.shape
            down, up = 0.3 * torch.randn(rank, inputs), 0.3 * torch.randn(outputs, rank)
            name = f"base_model.model.model.layers.{number}.{target}"
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
            linear.weight.data += scale * (up @ down)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.1,
        "use_rslora": rslora,
        "bias": "none",
        "modules_to_save": None,
        "target_modules": sorted({target.rpartition(".")[2] for target in targets}),
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return merged
