"""Products with quantized matrices on one GPU: first right, then how fast beside the bandwidth of this very card.

Checks every format, ‖ours − exact‖ / ‖exact‖ against the expanded matrix in float64, and attention over a cache of 8
bits. Times one layer's matrices (70B cut for two GPUs, 8B; other cuts by name) at 1, 8, 32 and 128 rows in graphs over
rotating sets that no cache holds. Ends in `--seconds`: what there was no time for is named. Prints a short table and
one JSON line last, and fails if any check did.

    python benchmarks/gpu/quantized.py [--cases check,cache,time] [--formats int8,fp8,int4] [--seconds 90]
    python benchmarks/gpu/quantized.py --cases time --formats int8,fp8 --models 70b/2,70b/4,175b/2,175b/4
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import torch

from benchmarks.gpu.compiled import beforehand
from benchmarks.gpu.kernel_tables import graph_us
from bireme_worker.kernels import attention, fp8
from bireme_worker.models.kv_cache import FORMATS
from bireme_worker.quant.gpu import GpuFp8Matrix, laid_out
from bireme_worker.quant.matrix import FP8, FP8_MAX, Fp8Matrix, GroupedMatrix, Quantized, round_inputs

SHAPES: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "70b/2": {"qkv": (5120, 8192), "out": (8192, 4096), "gate_up": (28_672, 8192), "down": (8192, 14_336)},
    "70b/4": {"qkv": (2560, 8192), "out": (8192, 2048), "gate_up": (14_336, 8192), "down": (8192, 7168)},
    "175b/2": {"qkv": (18_432, 12_288), "out": (12_288, 6144), "gate_up": (32_768, 12_288), "down": (12_288, 16_384)},
    "175b/4": {"qkv": (9216, 12_288), "out": (12_288, 3072), "gate_up": (16_384, 12_288), "down": (12_288, 8192)},
    "8b": {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28_672, 4096), "down": (4096, 14_336)},
}
LAYERS: Final = {"70b/2": 80, "70b/4": 80, "175b/2": 96, "175b/4": 96, "8b": 32}
ROWS: Final = (1, 8, 32, 128)
CHECKED: Final = ((5120, 8192, (torch.bfloat16,)), (1000, 1152, (torch.bfloat16, torch.float16)))
CHECKED_ROWS: Final = (1, 3, 16, 17, 40, 64, 65, 128, 200, 256, 300)
DECODED: Final = ((1, 500, 32, 4), (1, 4000, 32, 4), (32, 2000, 32, 8), (256, 800, 32, 8))
"""Rows, tokens that each sees, query heads and key heads."""
LIMIT: Final = {"fp8": 1e-2, "int8": 5e-3, "int4": 5e-3, "zeros4": 5e-3}
"""Of the relative error in bf16, whose rounding of the outputs alone makes 1.7e-3; fp8 is summed in fewer bits."""
SET_BYTES: Final = 3 << 30
"""Weights that are rotated through: the L2 holds 50 MB."""


@dataclass(frozen=True)
class Timed:
    """One product: microseconds, and bytes that must be read."""

    model: str
    name: str
    kind: str
    rows: int
    us: float
    nbytes: int

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.us * 1e6


def drawn(kind: str, outputs: int, inputs: int) -> Quantized:
    """A random matrix in the kernels' layout, made on the card."""
    scales = torch.rand((outputs, inputs // 64), device="cuda").add_(0.5).mul_(inputs**-0.5)
    if kind == "fp8":
        values = torch.randn((outputs, inputs), device="cuda", dtype=torch.float16).mul_(100)
        values = values.clamp_(-FP8_MAX, FP8_MAX).to(FP8)  # one of 300,000 is beyond, which is NaN
        return laid_out(Fp8Matrix(values, scales[:, 0].contiguous() / 100))
    bits = 8 if kind == "int8" else 4
    codes = torch.randint(0, 256, (outputs, inputs * bits // 8), device="cuda", dtype=torch.uint8)
    group = 128 if kind == "zeros4" else 64
    part = scales[:, : inputs // group].contiguous().div_((1 << bits) / 12**0.5).half()
    zeros = torch.randint(0, 16, part.shape, device="cuda", dtype=torch.uint8) if kind == "zeros4" else None
    return laid_out(GroupedMatrix(bits, codes, part, zeros))


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def exact_product(x: torch.Tensor, matrix: Quantized) -> torch.Tensor:
    values = x.float()
    if isinstance(matrix, GpuFp8Matrix):
        values = round_inputs(values, matrix.input_scale)
    return values.double() @ matrix.dequantized().double().t()


@dataclass
class Verdict:
    """The worst error of each format, and what was wrong or was not reached."""

    worst: dict[str, float]
    wrong: list[str]
    left: list[str]

    def judge(self, what: str, kind: str, error: float, limit: float) -> None:
        """NaN is wrong too."""
        if not error < limit:
            self.wrong.append(f"{what}: {error:.2e}")
        self.worst[kind] = max(self.worst.get(kind, 0.0), error)


def check(until: float) -> Verdict:
    """Every format over shapes and row counts, by both dtypes of a model; all of them, whatever fails."""
    verdict = Verdict({}, [], [])
    for outputs, inputs, dtypes in CHECKED:
        for kind in LIMIT:
            name = f"{kind} {outputs} x {inputs}"
            if time.monotonic() > until:
                verdict.left.append(name)
                continue
            try:
                errors = _checked(name, kind, drawn(kind, outputs, inputs), dtypes, verdict)
            except Exception as error:  # noqa: BLE001  a kernel that fails must not hide the others
                verdict.wrong.append(f"{name}: {type(error).__name__}: {str(error)[-300:]}")
            else:
                print(f"{name}, rows and error: {errors}", flush=True)
    return verdict


def _checked(name: str, kind: str, matrix: Quantized, dtypes: Sequence[torch.dtype], verdict: Verdict) -> str:
    errors = []
    inputs = matrix.dequantized().shape[1]
    for rows, dtype in (*((rows, dtype) for rows in CHECKED_ROWS for dtype in dtypes), (5, torch.float32)):
        x = torch.randn((rows, inputs), device="cuda").to(dtype)
        exact = exact_product(x, matrix)
        what = f"{name}, {rows} rows of {str(dtype).removeprefix('torch.')}"
        if not bool(exact.isfinite().all()):
            verdict.wrong.append(f"{what}: the reference itself is not finite")
            continue
        error = relative(matrix.multiply(x), exact)
        single = dtype == torch.float32
        limit = 1e-5 if single and kind != "fp8" else LIMIT[kind]
        verdict.judge(what, f"{kind} float32" if single else kind, error, limit)
        errors.append(f"{rows} {error:.1e}")
    return ", ".join(errors)


Pair = tuple[torch.Tensor, torch.Tensor | None]
"""A layer's cache and its scales, where it has 8 bits."""


def caches(blocks: int, kv_heads: int, count: int) -> Iterator[tuple[str, list[Pair]]]:
    """Caches with random contents in every format."""
    plain = [torch.randn((blocks, 2, 16, kv_heads, 128), device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    yield "bf16", [(one, None) for one in plain]
    for name, (kind, largest) in FORMATS.items():
        layers: list[Pair] = []
        for one in plain:
            scales = one.float().abs().amax(-1).div_(largest)
            scaled = one.float() / scales.unsqueeze(-1)
            layers.append(((scaled.round_() if name == "int8" else scaled).to(kind), scales))
        yield name, layers


def exact_attention(q: torch.Tensor, layer: Pair, table: torch.Tensor, context: int) -> torch.Tensor:
    """In float64, over what the cache stands for."""
    data, scales = layer
    wide = data.view(torch.uint8 if scales is not None else data.dtype)[table].view(data.dtype).double()
    if scales is not None:
        wide *= scales[table].double().unsqueeze(-1)
    keys, values = wide.transpose(1, 2).flatten(2, 3)[:, :, :context].unbind(1)
    grouped = q.double().view(len(q), keys.shape[2], -1, q.shape[2])
    scores = torch.einsum("rhgd,rkhd->rhgk", grouped, keys) * q.shape[2] ** -0.5
    return torch.einsum("rhgk,rkhd->rhgd", scores.softmax(-1), values).reshape(q.shape)


def cache_table(until: float, verdict: Verdict, *, timed: bool) -> list[str]:
    """Decode over caches of 16 and 8 bits: error against the same values in float64, and microseconds."""
    lines = []
    for number, size in enumerate(DECODED):
        if time.monotonic() > until:
            verdict.left.append(f"cache {size[0]} x {size[1]}")
            continue
        try:
            lines.append(cache_line(number, verdict, timed=timed))
        except Exception as error:  # noqa: BLE001  as above
            verdict.wrong.append(f"cache {size[0]} x {size[1]}: {type(error).__name__}: {str(error)[-300:]}")
        else:
            print(lines[-1], flush=True)
    return lines


def cache_line(number: int, verdict: Verdict, *, timed: bool) -> str:
    rows, context, heads, kv_heads = DECODED[number]
    blocks = -(-context // 16)
    table = torch.randperm(rows * blocks, device="cuda").view(rows, blocks) + 1
    pages = attention.Pages(table, torch.arange(rows, device="cuda"), torch.full((rows,), context, device="cuda"))
    q = torch.randn((rows, heads, 128), device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    cells = []
    for name, layers in caches(rows * blocks + 1, kv_heads, 4 if timed else 1):
        attention.decode(q, layers[0][0], pages, out, scales=layers[0][1])
        some = slice(0, min(rows, 4))
        error = relative(out[some], exact_attention(q[some], layers[0], table[some], context))
        verdict.judge(f"cache {name} {rows} x {context}", f"cache {name}", error, 1e-2)
        us = graph_us(partial(_decode, q, layers, pages, out), 16) if timed else 0.0
        cells.append(f"{name} {us:6.1f} us (error {error:.1e})")
    return f"decode {rows} x {context}, {heads}/{kv_heads} heads: " + "; ".join(cells)


def _decode(q: torch.Tensor, layers: Sequence[Pair], pages: attention.Pages, out: torch.Tensor, number: int) -> None:
    data, scales = layers[number % len(layers)]
    attention.decode(q, data, pages, out, scales=scales)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.randint(0, 256, (2 << 30,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    us = graph_us(lambda _: target.copy_(source), 4)
    return 2 * source.numel() / us * 1e6


def rotating(kind: str, outputs: int, inputs: int) -> tuple[list[Quantized], int, int]:
    """As many matrices as go into ``SET_BYTES``, and what reading one means."""
    first = drawn(kind, outputs, inputs)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in first.tensors())
    count = max(2, min(24, SET_BYTES // nbytes))
    return [first, *(drawn(kind, outputs, inputs) for _ in range(count - 1))], nbytes, count


def timings(models: Sequence[str], kinds: Sequence[str], until: float = float("inf")) -> tuple[list[Timed], list[str]]:
    """Every kernel that a layer calls; torch's scaled product and bf16 beside them. And what there was no time for."""
    found: list[Timed] = []
    left: list[str] = []
    for model in models:
        for kind in (*kinds, "bf16"):
            for name in SHAPES[model]:
                if time.monotonic() > until:
                    left.append(f"{model} {name} {kind}")
                    continue
                try:
                    found += _timed(model, name, kind)
                except Exception as error:  # noqa: BLE001  as above
                    left.append(f"{model} {name} {kind}: {type(error).__name__}: {str(error)[-300:]}")
            print(f"timed {model} {kind}", flush=True)
    return found, left


def _timed(model: str, name: str, kind: str) -> Iterator[Timed]:
    outputs, inputs = SHAPES[model][name]
    ways: list[tuple[str, Callable[..., object]]] = [(kind, _product)]
    if kind == "bf16":
        nbytes = 2 * outputs * inputs
        count = max(2, min(12, SET_BYTES // nbytes))
        plain = [torch.randn((outputs, inputs), device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        matrices: Sequence[Any] = [_Plain(one) for one in plain]
    else:
        matrices, nbytes, count = rotating(kind, outputs, inputs)
    if kind == "fp8":
        ways.append(("scaled_mm", _scaled))
    for rows in ROWS:
        x = torch.randn((rows, inputs), device="cuda", dtype=torch.bfloat16)
        for way, call in ways:
            if way != "scaled_mm" or rows > 1:
                yield Timed(model, name, way, rows, graph_us(partial(call, x, matrices), count), nbytes)


@dataclass(frozen=True)
class _Plain:
    weight: torch.Tensor

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def _product(x: torch.Tensor, matrices: Sequence[Any], number: int) -> object:
    return matrices[number].multiply(x)


def _scaled(x: torch.Tensor, matrices: Sequence[Any], number: int) -> torch.Tensor:
    rounded, scale = fp8.round_rows(x, None)
    matrix = matrices[number]
    product: torch.Tensor = torch._scaled_mm(  # noqa: SLF001
        rounded, matrix.values.t(), scale, matrix.scales.unsqueeze(0), out_dtype=x.dtype, use_fast_accum=True
    )
    return product


def table(found: Sequence[Timed], bandwidth: float) -> list[str]:
    """A line per matrix and format: microseconds and share of the copy's bandwidth, by rows."""
    lines = [f"copy {bandwidth * 1e-12:.2f} TB/s; us and share of it at {', '.join(map(str, ROWS))} rows"]
    for model, name, kind in dict.fromkeys((one.model, one.name, one.kind) for one in found):
        cells = {one.rows: one for one in found if (one.model, one.name, one.kind) == (model, name, kind)}
        shown = (f"{one.us:7.1f} {one.rate / bandwidth:5.0%}" for one in cells.values())
        lines.append(f"{model:6} {name:8} {kind:9} " + "  ".join(shown))
    for model in SHAPES:
        for kind in dict.fromkeys(one.kind for one in found):
            layer = sum(one.us for one in found if (one.model, one.kind, one.rows) == (model, kind, 1))
            if layer:
                lines.append(f"{model} {kind}: all layers' products of one row {layer * LAYERS[model] * 1e-3:.2f} ms")
    return lines


Task = tuple[str, int, int, int, str]
"""A product to compile for: format, outputs, inputs, rows and dtype; or "cache" and which of ``DECODED``."""


def tasks(cases: Sequence[str], models: Sequence[str], kinds: Sequence[str]) -> list[Task]:
    """Whatever is called below, the most wanted first."""
    checked: list[list[Task]] = []
    timed: list[list[Task]] = []
    for outputs, inputs, dtypes in CHECKED if "check" in cases else ():
        wanted = [(rows, dtype) for rows in CHECKED_ROWS for dtype in dtypes] + [(5, torch.float32)]
        checked.append([(kind, outputs, inputs, rows, str(dtype)) for kind in LIMIT for rows, dtype in wanted])
    for model in models if "time" in cases else ():
        sizes = [(kind, *size) for kind in kinds for size in SHAPES[model].values()]
        timed.append([(*size, rows, "torch.bfloat16") for size in sizes for rows in ROWS])
    decoded: list[Task] = [("cache", number, 0, 0, "") for number in range(len(DECODED))] if "cache" in cases else []
    return list(chain(*checked[:1], *timed[:1], decoded, *checked[1:], *timed[1:]))


def once(task: Task) -> None:
    """In a process of its own."""
    kind, outputs, inputs, rows, dtype = task
    if kind == "cache":
        cache_line(outputs, Verdict({}, [], []), timed=False)
    else:
        x = torch.randn((rows, inputs), device="cuda").to(getattr(torch, dtype.removeprefix("torch.")))
        drawn(kind, outputs, inputs).multiply(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="check,cache,time")
    parser.add_argument("--formats", default="int8,fp8,int4")
    parser.add_argument("--models", default="70b/2,8b", help=f"of {', '.join(SHAPES)}: the number is that of the GPUs")
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    begin = time.monotonic()
    cases, models, kinds = (text.split(",") for text in (options.cases, options.models, options.formats))
    print(beforehand(once, tasks(cases, models, kinds), options.seconds * 0.45), flush=True)
    report: dict[str, Any] = {"card": torch.cuda.get_device_name()}
    lines: list[str] = []
    verdict = check(begin + options.seconds * 0.65) if "check" in cases else Verdict({}, [], [])
    if "cache" in cases:
        cache_table(begin + options.seconds * 0.75, verdict, timed="time" in cases)
        torch.cuda.empty_cache()
    if "time" in cases:
        bandwidth = copy_bandwidth()
        found, left = timings(models, kinds, begin + options.seconds)
        lines += table(found, bandwidth)
        verdict.left += left
        report["copy_tb_s"] = round(bandwidth * 1e-12, 3)
        report["us"] = {f"{one.model} {one.name} {one.kind} {one.rows}": round(one.us, 1) for one in found}
    report["errors"] = {kind: float(f"{error:.2e}") for kind, error in verdict.worst.items()}
    report |= {"wrong": verdict.wrong, "left": verdict.left}
    print("\n".join(lines), flush=True)
    print(json.dumps(report), flush=True)
    if verdict.wrong:
        sys.exit("WRONG:\n" + "\n".join(verdict.wrong))


if __name__ == "__main__":
    main()
