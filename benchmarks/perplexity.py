"""Perplexity of a fixed text under each quantization, beside float32: what the format costs, not how fast it is.

The weights of every linear layer are replaced by what a rank would multiply by (bireme_worker.quant), so the figure is
that of the served model; inputs of fp8 layers are rounded as there. SmolLM2's public weights are 4-bit already (GGUF
Q4_1), which spoils the comparison for a second rounding to 4 bits; so int4 is judged on a small model as well that is
trained here in float32, on the same kind of prose from other modules, and read on the text that SmolLM2 is read on,
none of which it has seen. It learns fast for its size: 1,024 byte pairs for a vocabulary, so that each token is two
bytes, and the matrices' gradients made orthogonal (Muon, Jordan 2024), which needs half the steps of Adam.

    OMP_NUM_THREADS=2 python benchmarks/perplexity.py [--tokens 2048] [--train-seconds 600]

`--train-seconds` are seconds of one core's time, so that other load changes how long it takes, not what is learnt.

The text is Python's own standard library: every machine has it, and it is no secret what is in it. Last line: JSON.
"""

import argparse
import ast
import json
import math
import os
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from bireme_worker.checkpoints.quantization import AT_LOAD, Method
from bireme_worker.quant.matrix import Fp8Matrix, GroupedMatrix, round_inputs
from bireme_worker.quant.rounding import pack_nibbles, round_fp8, round_groups

WINDOW = 512
MODULES = ("argparse", "ast", "base64", "calendar", "cmd", "csv", "datetime", "difflib", "doctest", "enum", "fractions")
VOCABULARY, TRAINED_WINDOW, BATCH = 1024, 128, 8
HELD_OUT = 40_000
"""Bytes on which the trained model is read."""
LEARNT = 2.5
"""Bits per byte under which the trained model knows its language; rounding means little above."""
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3


def text() -> str:
    """Documentation strings of the standard library, in a fixed order: English prose."""
    return prose(Path(__import__(name).__file__ or "") for name in MODULES)


def other_text() -> str:
    """The same of all other modules."""
    library = Path(sysconfig.get_path("stdlib"))
    names = sorted(sys.stdlib_module_names - {*MODULES})
    files = [library / f"{name}.py" for name in names]
    packages = [file for name in names for file in sorted((library / name).glob("*.py"))]
    return prose(file for file in (*files, *packages) if file.exists())


def prose(files: Iterable[Path]) -> str:
    """The documentation strings of these files."""
    parts = []
    for file in files:
        nodes = [
            one
            for one in ast.walk(ast.parse(file.read_text(errors="replace")))
            if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef)
        ]
        parts += [said for node in nodes if (said := ast.get_docstring(node))]
    return "\n\n".join(parts)


def perplexity(model: Any, ids: torch.Tensor, size: int) -> float:
    """Of ``ids`` in windows of ``size``, each predicted from its own beginning."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for window in ids.split(size):
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


def compare(model: Any, ids: torch.Tensor, size: int) -> dict[str, float]:
    """Perplexity as it is and under each quantization."""
    plain = {key: value.clone() for key, value in model.state_dict().items()}
    found = {"float32": perplexity(model, ids, size)}
    for name in AT_LOAD:
        hooks = quantized(model, name)
        found[name] = perplexity(model, ids, size)
        for hook in hooks:
            hook.remove()
        model.load_state_dict(plain)
    return found


def vocabulary(words: str) -> Tokenizer:
    """Byte pairs of this text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([words], trainer)
    return tokenizer


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest matrix with singular values of about one, by five steps of Newton and Schulz."""
    x: torch.Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


class Muon:
    """Steps of equal size in all directions of each matrix."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter]) -> None:
        self._state = [(matrix, torch.zeros_like(matrix)) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move, by momentum, against the gradients."""
        for matrix, momentum in self._state:
            assert matrix.grad is not None
            momentum.mul_(0.95).add_(matrix.grad)
            update = orthogonal(matrix.grad.add(momentum, alpha=0.95))
            matrix.mul_(1 - rate * 0.1).sub_(update, alpha=rate * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def trained(tokens: torch.Tensor, seconds: float) -> Any:
    """A model of 2 million parameters, after so many seconds of one core."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        vocab_size=VOCABULARY,
        max_position_embeddings=TRAINED_WINDOW,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    inner = [one for one in model.model.layers.parameters() if one.ndim == 2]
    muon, adam = Muon(inner), torch.optim.AdamW([one for one in model.parameters() if all(one is not x for x in inner)])
    begin, steps = time.process_time(), 0
    while (done := (time.process_time() - begin) / seconds) < 1:
        rate = min(1.0, 20 * done + 0.05, 2 * (1 - done) + 0.02)
        starts = torch.randint(0, len(tokens) - TRAINED_WINDOW, (BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + TRAINED_WINDOW] for start in starts])
        loss = model(batch, labels=batch).loss
        model.zero_grad()
        loss.backward()
        muon.step(MATRIX_RATE * rate)
        adam.param_groups[0]["lr"] = OTHER_RATE * rate
        adam.step()
        steps += 1
        if steps % 100 == 0:
            print(f"{steps} steps, {100 * done:.0f} %: {loss.item() / math.log(2):.2f} bits per token", flush=True)
    return model.eval()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache" / "bireme" / "smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--train-seconds", type=float, default=240)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    words = text()
    ids = AutoTokenizer.from_pretrained(arguments.model)(words, return_tensors="pt").input_ids[0][: arguments.tokens]
    smollm2 = compare(AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval(), ids, WINDOW)
    other, held_out = other_text(), words[:HELD_OUT]
    pairs = vocabulary(other)
    model = trained(torch.tensor(pairs.encode(other).ids), arguments.train_seconds)
    tokens = torch.tensor(pairs.encode(held_out).ids)
    small = compare(model, tokens, TRAINED_WINDOW)
    bits = math.log2(small["float32"]) * len(tokens) / len(held_out.encode())
    learnt = bits < LEARNT
    print(f"the trained model needs {bits:.2f} bits per byte" + ("" if learnt else ": give it more --train-seconds"))
    read = {"smollm2": smollm2, **({"trained": small} if learnt else {})}
    for name, found in read.items():
        print(name)
        for kind, value in found.items():
            print(f"  {kind:8} {value:8.3f}  {100 * (value / found['float32'] - 1):+.2f} %")
    more = {
        f"{name}_{kind}_percent": round(100 * (value / found["float32"] - 1), 3)
        for name, found in read.items()
        for kind, value in found.items()
        if kind != "float32"
    }
    exact = {f"{name}_float32": found["float32"] for name, found in read.items()}
    print(json.dumps({"tokens": len(ids), "trained_bits_per_byte": round(bits, 3), **exact, **more}))


if __name__ == "__main__":
    main()
