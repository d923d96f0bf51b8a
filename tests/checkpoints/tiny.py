"""Small checkpoints made on the spot: by transformers, as the reference writer, and by gguf."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def tiny_llama(**overrides: Any) -> Any:
    """A LlamaForCausalLM with random weights; Any, because its own types know no default."""
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**{**TINY, **overrides})).eval()


def save_tiny(directory: Path, *, max_shard_size: str = "1GB", **overrides: Any) -> Any:
    model = tiny_llama(**overrides)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The row order in which llama.cpp stores query and key weights."""
    rows, *rest = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, *rest).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, *, kind: str = "F32", **values: Any) -> dict[str, torch.Tensor]:
    """Write ``model`` as llama.cpp's converter would; return the tensors that a reader must give back."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in values.items():
        name = key.replace("__", ".")
        writer.add_bool(name, value) if isinstance(value, bool) else (
            writer.add_array(name, value)
            if isinstance(value, list)
            else writer.add_string(name, value)
            if isinstance(value, str)
            else writer.add_uint32(name, value)
        )
    expected = {}
    for name, tensor in gguf_tensors(model).items():
        quantization = gguf.GGMLQuantizationType[kind if tensor[1].dim() == 2 else "F32"]
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
        hf_name, plain = tensor
        stored = plain if heads is None or config.model_type != "llama" else interleave(plain, heads)
        data = gguf.quants.quantize(stored.numpy(), quantization)
        writer.add_tensor(name, data, raw_dtype=quantization)
        expected[hf_name] = requantized(plain, quantization)
    if config.rope_parameters["rope_type"] == "llama3":
        inverse = model.model.rotary_emb.inv_freq
        plain_frequencies = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, 16, 2) / 16))
        writer.add_tensor("rope_freqs.weight", (plain_frequencies / inverse).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def requantized(weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    """Quantization works along a row, so the order of rows does not change it."""
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


def gguf_tensors(model: Any) -> dict[str, tuple[str, torch.Tensor]]:
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if not model.config.tie_word_embeddings:
        names["output.weight"] = "lm_head.weight"
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in GGUF_LAYER.items():
            for kind in ("weight", "bias"):
                names[f"blk.{layer}.{ours}.{kind}"] = f"model.layers.{layer}.{theirs}.{kind}"
    return {name: (theirs, state[theirs]) for name, theirs in names.items() if theirs in state}


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
