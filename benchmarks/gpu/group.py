"""Groups of GPUs: real rank processes over random weights of a named shape; first right, then how fast, then killed.

Each layout (tensor x pipeline) is driven by plans of the real scheduler over the real plan connections. Checks: ids in
float32 against one GPU. Measures: load, time between tokens at batch 1, output tokens per second, and how long a
killed rank keeps the group from serving. Prints one JSON line last.

    python benchmarks/gpu/group.py [--shape llama8b] [--layouts 2x1,1x2] [--cases check,latency,uniform256,kill]
"""

import argparse
import json
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.drive import Formed, drive, latency
from benchmarks.gpu.formed import running, until_lost
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.weights import DEVICE, write_checkpoint
from benchmarks.gpu.workloads import conversations, fixed, uniform
from bireme.names import Env
from bireme.wire.control import Load, Loaded

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1003,
    "max_position_embeddings": 8192,
    "rope_theta": 10_000.0,
}


def check(directory: Path, layouts: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Ids of a small float32 model, greedy and sampled, against one GPU."""
    source = write_checkpoint(SMALL, directory / "small")
    requests = uniform(SMALL["vocab_size"], 24, 5, 90)  # type: ignore[arg-type]
    exact = {Env.KV_BYTES: str(1 << 28), Env.MODEL_DTYPE: "float32"}
    found = {}
    for tensor, stages in ((1, 1), *layouts):
        with running(source, tensor, stages, **exact) as (engine, _):
            found[f"{tensor}x{stages}"] = drive(engine, requests, hot=True).ids
    one = found["1x1"]
    return {name: f"{sum(a == b for a, b in zip(ids, one, strict=True))}/{len(one)}" for name, ids in found.items()}


def kill(engine: Formed, vocabulary: int, turn: int) -> dict[str, Any]:
    """Kill one rank under load, as a supervisor would hear of it; times from the signal, and whether all is right."""
    group, requests = engine.group, fixed(vocabulary, 8, 50, 60)
    before = drive(engine, requests).ids
    places = sorted(group.ranks)
    place = places[turn % len(places)]
    others = {other: one.process.pid for other, one in group.ranks.items() if other != place}
    load = threading.Thread(target=until_lost, args=(engine, fixed(vocabulary, 64, 100, 4000)), daemon=True)
    load.start()
    time.sleep(1.5)
    begin = time.perf_counter()
    group.ranks[place].kill(signal.SIGKILL)
    group.ranks[place].process.wait()
    group.end("a rank was killed", without=frozenset({place}))
    idle = time.perf_counter() - begin
    load.join()
    group.respawn(*place)
    group.ranks[place].channel.send(Load(group.checkpoint))
    group.ranks[place].wait_for(Loaded)
    group.form(group.epoch + 1)
    serving = time.perf_counter() - begin
    after = drive(engine, requests).ids
    survived = all(group.ranks[other].process.pid == pid for other, pid in others.items())
    return {"idle_s": round(idle, 3), "serving_s": round(serving, 2), "right": after == before, "survived": survived}


def measure(source: Path, config: Mapping[str, Any], layout: tuple[int, int], cases: Sequence[str]) -> dict[str, Any]:
    """All cases of one layout."""
    vocabulary = config["vocab_size"]
    report: dict[str, Any] = {}
    with running(source, *layout) as (engine, seconds):
        report |= {"start_to_formed_s": round(seconds, 1), "kv_blocks": engine.blocks}
        print(layout, report, flush=True)
        drive(engine, fixed(vocabulary, 32, 200, 8))  # compiles what eager steps need
        if "latency" in cases:
            report["latency_ms"] = {n: round(latency(engine, vocabulary, n), 3) for n in (500, 4000)}
            print(report["latency_ms"], flush=True)
        if "uniform256" in cases:
            report["uniform256_tok_s"] = round(drive(engine, uniform(vocabulary)).rate)
            print(report["uniform256_tok_s"], flush=True)
        if "share" in cases:
            report["share_tok_s"] = round(drive(engine, conversations(vocabulary)).rate)
            print(report["share_tok_s"], flush=True)
        if "kill" in cases:
            report["kill"] = [kill(engine, vocabulary, turn) for turn in range(2)]
            print(report["kill"], flush=True)
    return report


def _large(
    config: Mapping[str, Any], layouts: Sequence[tuple[int, int]], cases: Sequence[str], scratch: Path
) -> dict[str, Any]:
    begin = time.perf_counter()
    source = write_checkpoint(config, scratch / "large")
    print(f"checkpoint written in {time.perf_counter() - begin:.1f} s", flush=True)
    return {f"{tensor}x{stages}": measure(source, config, (tensor, stages), cases) for tensor, stages in layouts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--layouts", default="2x1,1x2")
    parser.add_argument("--cases", default="check,latency,uniform256,kill")
    options = parser.parse_args()
    layouts = [(int(one.split("x")[0]), int(one.split("x")[1])) for one in options.layouts.split(",")]
    cases = options.cases.split(",")
    config = SHAPES[options.shape]
    report: dict[str, Any] = {
        "shape": options.shape,
        "card": torch.cuda.get_device_name() if DEVICE == "cuda" else "none",
    }
    with tempfile.TemporaryDirectory() as scratch:
        if "check" in cases:
            report["check"] = check(Path(scratch), layouts)
            print(report["check"], flush=True)
        if cases != ["check"]:
            report |= _large(config, layouts, cases, Path(scratch))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
