"""Single kernels on the GPU beside what else could do their work: products of one row, attention over pages."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from bireme_worker.kernels import attention
from bireme_worker.kernels.gemv import gemv

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def graph_us(call: Callable[[int], object], count: int) -> float:
    """Microseconds of ``call(0)`` to ``call(count - 1)`` each, captured together and replayed."""
    for number in range(count):
        call(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            call(number)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(12):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return float(statistics.median(times[2:]))


def _multiply(call: Multiply, x: torch.Tensor, matrices: Sequence[torch.Tensor], number: int) -> torch.Tensor:
    return call(x, matrices[number])


def _decode(
    q: torch.Tensor, caches: Sequence[torch.Tensor], pages: attention.Pages, out: torch.Tensor, number: int
) -> None:
    attention.decode(q, caches[number % len(caches)], pages, out)


def gemv_table(config: Mapping[str, Any]) -> list[str]:
    """One row times each matrix of a layer, out of cache: cuBLAS and our kernel."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config.get("head_dim", 128)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {
        "qkv": ((heads + 2 * kv_heads) * dim, hidden),
        "out": (hidden, heads * dim),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config["vocab_size"], hidden),
    }
    lines = []
    for name, (outputs, inputs) in shapes.items():
        count = max(2, min(24, (3 << 30) // (outputs * inputs * 2)))
        matrices = [torch.randn((outputs, inputs), device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        x = torch.randn((1, inputs), device="cuda", dtype=torch.bfloat16)
        figures = {
            way: graph_us(partial(_multiply, call, x, matrices), count)
            for way, call in (("cublas", functional.linear), ("ours", gemv))
        }
        rates = (f"{way} {us:.1f} us {outputs * inputs * 2e-6 / us:.2f} TB/s" for way, us in figures.items())
        lines.append(f"{name}: " + "; ".join(rates))
    return lines


def attention_table() -> list[str]:
    """Decode attention of the 8B shape against the bytes of keys and values that it reads."""
    lines = []
    for rows, context in ((1, 500), (1, 4000), (8, 4000), (32, 500), (64, 800), (256, 800), (8, 20_000)):
        blocks = -(-context // 16)
        shape = (rows * blocks + 1, 2, 16, 8, 128)
        caches = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        table = torch.randperm(rows * blocks, device="cuda").view(rows, blocks) + 1
        lengths = torch.full((rows,), context, device="cuda")
        pages = attention.Pages(table, torch.arange(rows, device="cuda"), lengths)
        q = torch.randn((rows, 32, 128), device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(q)
        us = graph_us(partial(_decode, q, caches, pages, out), 16)
        lines.append(f"attention {rows} x {context}: {us:.1f} us {rows * context * 4096e-6 / us:.2f} TB/s")
    return lines
