"""The engine on one GPU, with random weights of a named shape made on the card: first right, then how fast.

Drives the rank's Runner with plans of the real scheduler, in one process. Checks: logits against the CPU's float32
path, chunked prompts against whole ones, graphs against eager steps. Measures: time between tokens at batch 1, output
tokens per second of 256 requests, where a step's time goes. Prints one JSON line last.

    python benchmarks/gpu/engine.py [--shape llama8b] [--cases check,latency,uniform256,fixed256,share,profile]
"""

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from benchmarks.gpu.drive import Solo, drive, latency
from benchmarks.gpu.kernel_tables import attention_table, gemv_table
from benchmarks.gpu.shapes import SHAPES, quantized
from benchmarks.gpu.solo import eagerly, forget, make_runner, profile
from benchmarks.gpu.workloads import Request, conversations, fixed, uniform
from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids
from bireme_worker.rank.runner import Runner

SLOW_STEP_S = 0.03
"""What takes longer has prompts in it."""


def throughput(runner: Runner, requests: Sequence[Request]) -> float:
    """Output tokens per second."""
    run = drive(Solo(runner), requests)
    slow = [gap for gap in (b - a for a, b in pairwise(run.steps)) if gap > SLOW_STEP_S]
    print(f"{len(run.steps)} steps in {run.seconds:.2f} s; {len(slow)} slow ones take {sum(slow):.2f} s", flush=True)
    return run.rate


def logits_of(runner: Runner, plans: Sequence[Plan]) -> list[torch.Tensor]:
    """The logits of every sampling row, plan by plan."""
    seen: list[torch.Tensor] = []
    original = runner.model.logits

    def logits(x: torch.Tensor) -> torch.Tensor:
        values = original(x)
        seen.append(values.float().cpu().clone())
        return values

    runner.model.logits = logits  # type: ignore[method-assign]
    for plan in plans:
        runner.collect(runner.launch(plan))
    del runner.model.logits
    return seen


def mixed_plans(vocabulary: int) -> list[Plan]:
    """Whole prompts, a decode beside a chunk, the rest of the chunk over its cached beginning; all ids given."""
    tokens = random.Random(7)
    ids = [tokens.randrange(vocabulary) for _ in range(400)]
    greedy = Sampling(logprobs=0)  # keeps these steps out of the graphs: the logits are looked at
    admits = tuple(Admit(slot, greedy) for slot in (1, 2, 3))
    return [
        Plan(1, 0, (Row(1, 0, 300, pack_ids(ids[:300]), tuple(range(1, 20)), 0),), admits),
        Plan(1, 1, (Row(2, 0, 40, pack_ids(ids[:40]), (20, 21, 22), 0), Row(1, 300, 1, pack_ids(ids[300:301]), (), 1))),
        Plan(
            1,
            2,
            (
                Row(3, 0, 100, pack_ids(ids[9:109]), tuple(range(23, 40)), -1),
                Row(1, 301, 1, pack_ids(ids[301:302]), (), 2),
                Row(2, 40, 1, pack_ids(ids[40:41]), (), 1),
            ),
        ),
        Plan(1, 3, (Row(3, 100, 150, pack_ids(ids[109:259]), (), 0), Row(2, 41, 1, pack_ids(ids[41:42]), (), 2))),
    ]


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a model of this shape with four layers."""
    small = {**config, "num_hidden_layers": 4}
    vocabulary = config["vocab_size"]
    plans = mixed_plans(vocabulary)
    reference = logits_of(make_runner(small, device="cpu", dtype="float32", kv_bytes=1 << 28), plans)
    report: dict[str, Any] = {}
    for dtype, limit in (("float32", 1e-3), ("bfloat16", 2e-2)):
        runner = make_runner(small, dtype=dtype, kv_bytes=1 << 30, max_running_requests=32)
        found = logits_of(runner, plans)
        wrong = [float((a - b).norm() / b.norm()) for a, b in zip(found, reference, strict=True)]
        assert max(wrong) < limit, f"{dtype}: relative error {wrong}"
        report[f"{dtype}_error"] = round(max(wrong), 6)
        requests = uniform(vocabulary, 8, 30, 90)
        whole = drive(Solo(runner), requests).ids
        with eagerly(runner):
            eager = drive(Solo(runner), requests).ids
        same = sum(a == b for a, b in zip(whole, eager, strict=True))
        report[f"{dtype}_graph_equals_eager"] = f"{same}/8"
        chunked = drive(Solo(runner), requests, budget=32, slots=32).ids
        report[f"{dtype}_chunked_equals_whole"] = f"{sum(a == b for a, b in zip(whole, chunked, strict=True))}/8"
        assert dtype != "float32" or (same == 8 and chunked == whole), report
        del runner
        forget()
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--cases", default="check,latency,eager,uniform256,profile")
    parser.add_argument("--quantization", choices=("none", "int8", "int4", "fp8"), default="none")
    arguments = parser.parse_args()
    config, cases = quantized(SHAPES[arguments.shape], arguments.quantization), arguments.cases.split(",")
    vocabulary = config["vocab_size"]
    report: dict[str, Any] = {
        "shape": arguments.shape,
        "weights": arguments.quantization,
        "card": torch.cuda.get_device_name(),
    }
    if "check" in cases:
        report["check"] = check(config)
        print(report["check"], flush=True)
    if "kernels" in cases:
        print("\n".join((*gemv_table(config), *attention_table())), flush=True)
        torch.cuda.empty_cache()
    start = time.perf_counter()
    runner = make_runner(config)
    report["load_and_capture_s"] = round(time.perf_counter() - start, 1)
    report["kv_blocks"] = runner.cache.blocks
    print(report, flush=True)
    drive(Solo(runner), fixed(vocabulary, 32, 200, 8))  # compiles what eager steps need
    if "latency" in cases:
        report["latency_ms"] = {n: round(latency(Solo(runner), vocabulary, n), 3) for n in (500, 4000)}
        print(report["latency_ms"], flush=True)
    if "eager" in cases:
        with eagerly(runner):
            report["eager_ms"] = round(latency(Solo(runner), vocabulary, 500, 60), 3)
    if "profile" in cases:
        for rows, context in ((1, 500), (32, 500), (256, 800)):
            print("\n".join(profile(runner, vocabulary, rows, context).lines), flush=True)
    if "uniform256" in cases:
        report["uniform256_tok_s"] = round(throughput(runner, uniform(vocabulary)))
        print(report["uniform256_tok_s"], flush=True)
    if "fixed256" in cases:
        report["fixed256_tok_s"] = round(throughput(runner, fixed(vocabulary, 256, 128, 2048)))
    if "share" in cases:
        report["share_tok_s"] = round(throughput(runner, conversations(vocabulary)))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
