"""Perplexity of a fixed text under each quantization, beside float32: what the format costs, not how fast it is.

The weights of every linear layer are replaced by what a rank would multiply by (bireme_worker.quant), so the figure is
that of the served model; inputs of fp8 layers are rounded as there. SmolLM2's public weights are 4-bit already (GGUF
Q4_1), which flatters a second rounding to 4 bits; so int4 is judged on a small model as well that is trained here on
the same kind of text in float32 for some tens of seconds, and read on a part of it that it was not trained on.

    OMP_NUM_THREADS=2 python benchmarks/perplexity.py [--tokens 2048] [--train-seconds 60]

The text is Python's own standard library: every machine has it, and it is no secret what is in it. Last line: JSON.
"""

import argparse
import ast
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from bireme_worker.checkpoints.quantization import AT_LOAD, Method
from bireme_worker.quant.matrix import Fp8Matrix, GroupedMatrix, round_inputs
from bireme_worker.quant.rounding import pack_nibbles, round_fp8, round_groups

WINDOW = 512
MODULES = ("argparse", "ast", "base64", "calendar", "cmd", "csv", "datetime", "difflib", "doctest", "enum", "fractions")


LEARNT = 10.0
"""Perplexity per byte below which a model knows more than how often each byte comes; rounding means nothing above."""


def text() -> str:
    """Documentation strings of the standard library, in a fixed order: English prose."""
    parts = []
    for name in MODULES:
        source = Path(__import__(name).__file__ or "").read_text()
        nodes = [
            one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef)
        ]
        parts += [said for node in nodes if (said := ast.get_docstring(node))]
    return "\n\n".join(parts)


def perplexity(model: Any, ids: torch.Tensor) -> float:
    """Of ``ids`` in windows, each predicted from its own beginning."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for window in ids.split(WINDOW):
            if len(window) < 2:
                continue
            logits = model(window[None, :]).logits[0, :-1].float()
            total += float(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
            count += len(window) - 1
    return math.exp(total / count)


def quantized(model: Any, name: str) -> list[Any]:
    """Round all linear layers but the head in place; returns hooks to remove."""
    hooks = []
    for path, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or path == "lm_head":
            continue
        scheme = AT_LOAD[name]
        if scheme.method is Method.FP8:
            layer.weight.data = Fp8Matrix(*round_fp8(layer.weight.data)).dequantized()
            hooks.append(
                layer.register_forward_pre_hook(
                    lambda _, inputs: (round_inputs(inputs[0].flatten(0, -2), None).view_as(inputs[0]),)
                )
            )
            continue
        codes, scales = round_groups(layer.weight.data, scheme.bits, scheme.group)
        packed = pack_nibbles(codes) if scheme.bits == 4 else codes
        layer.weight.data = GroupedMatrix(scheme.bits, packed, scales).dequantized()
    return hooks


def compare(model: Any, ids: torch.Tensor) -> dict[str, float]:
    """Perplexity as it is and under each quantization."""
    plain = {key: value.clone() for key, value in model.state_dict().items()}
    found = {"float32": perplexity(model, ids)}
    for name in AT_LOAD:
        hooks = quantized(model, name)
        found[name] = perplexity(model, ids)
        for hook in hooks:
            hook.remove()
        model.load_state_dict(plain)
    return found


def trained(tokens: torch.Tensor, seconds: float) -> tuple[Any, torch.Tensor]:
    """A byte-level model of 1.6 million parameters trained on nine tenths of ``tokens``, and the last tenth."""
    torch.manual_seed(0)
    cut = len(tokens) * 9 // 10
    config = LlamaConfig(
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        vocab_size=256,
        max_position_embeddings=WINDOW,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    begin = time.monotonic()
    while (spent := time.monotonic() - begin) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * max(1 - spent / seconds, 0.02)
        starts = torch.randint(0, cut - 129, (8,))
        batch = torch.stack([tokens[start : start + 128] for start in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokens[cut:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache" / "bireme" / "smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--train-seconds", type=float, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    words = text()
    ids = AutoTokenizer.from_pretrained(arguments.model)(words, return_tensors="pt").input_ids[0][: arguments.tokens]
    smollm2 = compare(AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval(), ids)
    model, held_out = trained(torch.tensor(list(words.encode())), arguments.train_seconds)
    small = compare(model, held_out)
    learnt = small["float32"] < LEARNT
    if not learnt:
        print(f"the small model has not learnt (perplexity {small['float32']:.1f}): give it more --train-seconds")
    models = {"smollm2": smollm2, **({"trained": small} if learnt else {})}
    for name, found in models.items():
        print(name)
        for kind, value in found.items():
            print(f"  {kind:8} {value:8.3f}  {100 * (value / found['float32'] - 1):+.2f} %")
    more = {
        f"{name}_{kind}_percent": round(100 * (value / found["float32"] - 1), 3)
        for name, found in models.items()
        for kind, value in found.items()
        if kind != "float32"
    }
    exact = {f"{name}_float32": found["float32"] for name, found in models.items()}
    print(json.dumps({"tokens": len(ids), **exact, **more}))


if __name__ == "__main__":
    main()
