"""What the metadata of a GGUF file says, in the words of config.json and generation_config.json. No torch.

The architectures `llama`, `qwen2` and `qwen3` are known. Rope scaling of Llama 3 has no metadata: llama.cpp stores the
resulting factors as a tensor, from which the four parameters are recovered and then proved by computing it again.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.gguf_file import GGUFFile

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"
DTYPES = {GGMLQuantizationType.F16: "float16", GGMLQuantizationType.BF16: "bfloat16"}

# The values that all of Llama 3.1, 3.2 and 3.3 share; `factor` differs (8 or 32) and is read from the tensor.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192


def hf_config(file: GGUFFile) -> dict[str, Any]:
    """Return config.json as the model's authors would have written it."""
    kind = _architecture(file)
    heads = file.need(f"{kind}.attention.head_count", int)
    hidden = file.need(f"{kind}.embedding_length", int)
    theta = file.get(f"{kind}.rope.freq_base", 10000.0)
    head_dim = file.get(f"{kind}.attention.key_length", hidden // max(heads, 1))
    config = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.need(f"{kind}.feed_forward_length", int),
        "num_hidden_layers": file.need(f"{kind}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": file.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": _vocabulary(file),
        "max_position_embeddings": file.need(f"{kind}.context_length", int),
        "rms_norm_eps": _shortest(file.need(f"{kind}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(theta),
        "rope_scaling": _rope_scaling(file, kind, head_dim, theta),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "dtype": DTYPES.get(file.tensors["token_embd.weight"].kind, "float32"),
    }
    return {**config, **hf_generation_config(file)}


def hf_generation_config(file: GGUFFile) -> dict[str, Any]:
    """Return the special ids: all the ways in which the file says that a text ends."""
    ends = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    known = sorted({end for end in ends if end is not None})
    ids = {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": known[0] if len(known) == 1 else known or None,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in ids.items() if value is not None}


def _architecture(file: GGUFFile) -> str:
    kind = file.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedCheckpoint(f"{file.path}: architecture {kind!r} is not supported, only {known}")
    if file.get(f"{kind}.expert_count", 0):
        raise UnsupportedCheckpoint(f"{file.path}: mixture of experts is not supported, only dense {kind}")
    if file.get("split.count", 1) > 1:
        raise UnsupportedCheckpoint(f"{file.path} is one part of several: merge them first (llama-gguf-split --merge)")
    if "token_embd.weight" not in file.tensors:
        raise UnsupportedCheckpoint(f"{file.path} has no tensor token_embd.weight: it is no language model")
    return kind


def _vocabulary(file: GGUFFile) -> int:
    return file.tensors["token_embd.weight"].shape[0]


def _shortest(value: float) -> float:
    """Undo the widening of a stored float32, so that 1e-5 reads as 1e-5."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, kind: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    rotated = file.get(f"{kind}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise UnsupportedCheckpoint(f"{file.path}: rope over {rotated} of {head_dim} head dimensions is not supported")
    named = file.get(f"{kind}.rope.scaling.type", "none")
    if named in {"linear", "yarn"}:
        return _named_scaling(file, kind, named)
    if named != "none":
        return {"rope_type": named}  # ModelConfig refuses it by this name
    return _llama3_scaling(file, head_dim, theta) if ROPE_FACTORS in file.tensors else None


def _named_scaling(file: GGUFFile, kind: str, named: str) -> dict[str, Any]:
    settings = {"rope_type": named, "factor": _shortest(file.need(f"{kind}.rope.scaling.factor", float))}
    original = file.get(f"{kind}.rope.scaling.original_context_length", 0)
    return {**settings, "original_max_position_embeddings": original} if original else settings


def _llama3_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any]:
    tensor = file.tensors[ROPE_FACTORS]
    refusal = UnsupportedCheckpoint(f"{file.path}: {ROPE_FACTORS} is not Llama 3's rope scaling, the only one known")
    if tensor.kind is not GGMLQuantizationType.F32 or tensor.shape != (head_dim // 2,):
        raise refusal
    stored = np.frombuffer(file.mapped.data[tensor.begin : tensor.end], dtype=np.float32)
    factor = float(stored.max(initial=1.0))
    if not np.allclose(stored, _llama3_factors(head_dim, theta, factor), rtol=1e-4):
        raise refusal
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }


def _llama3_factors(head_dim: int, theta: float, factor: float) -> npt.NDArray[np.float64]:
    """What each rotary frequency is divided by (Llama 3.1 model card)."""
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    blended: npt.NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    low, high = wavelength > LLAMA3_CONTEXT / LLAMA3_LOW, wavelength < LLAMA3_CONTEXT / LLAMA3_HIGH
    return np.where(low, factor, np.where(high, 1.0, blended))
