"""How GGUF names the tensors of a Llama or Qwen, in Hugging Face's names. No torch."""

import re
from collections.abc import Mapping

from bireme_worker.checkpoints.errors import UnexpectedTensor

_WHOLE_MODEL: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER: Mapping[str, str] = {
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
_PATTERN = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")


def hf_name(name: str) -> str:
    """Translate one name.

    Raises:
        UnexpectedTensor: the name is of no part of these models.
    """
    match = _PATTERN.fullmatch(name)
    if match is not None:
        layer, part, kind = match["layer"], match["part"], match["kind"]
        if layer is None and part in _WHOLE_MODEL:
            return f"{_WHOLE_MODEL[part]}.{kind}"
        if layer is not None and part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
    raise UnexpectedTensor(f"{name} is no tensor of a Llama or Qwen model in GGUF")
