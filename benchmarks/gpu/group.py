"""Groups of GPUs: real rank processes over random weights of a named shape; first right, then how fast, then killed.

Each layout (tensor x pipeline) is driven by plans of the real scheduler over the real plan connections. Checks: ids in
float32 against one GPU. Measures: load, time between tokens at batch 1, output tokens per second, and how long a
killed rank keeps the group from serving. Prints one JSON line last.

    python benchmarks/gpu/group.py [--shape llama8b] [--layouts 2x1,1x2] [--cases check,latency,uniform256,kill]
"""

import argparse
import json
import random
import signal
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.shapes import SHAPES
from bireme.names import Env
from bireme.wire.control import Load, Loaded
from bireme.wire.errors import WireError
from bireme.wire.plan import Sampling, pack_ids, unpack_ids
from bireme.wire.requests import Submit
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.reader import TensorInfo
from bireme_worker.checkpoints.safetensors_writer import write_safetensors
from bireme_worker.engine.scheduler import Scheduler, SchedulerConfig
from bireme_worker.models.load import expected_tensors
from tests.support.rank_group import RankGroup, rank_group

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
SLOTS, BUDGET = 256, 8192
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The checks also run on a CPU."""
Request = tuple[list[int], int]


class Drawn:
    """Tensors drawn on a GPU from their names' seeds, for the writer of checkpoints."""

    def __init__(self, tensors: Mapping[str, TensorInfo]) -> None:
        self.tensors = tensors
        self._last: tuple[str, torch.Tensor] = ("", torch.empty(0))

    def read(self, name: str, slices: tuple[slice, ...] = ()) -> torch.Tensor:
        if self._last[0] != name:
            self._last = (name, self._draw(name))
        return self._last[1][slices]

    def _draw(self, name: str) -> torch.Tensor:
        generator = torch.Generator(DEVICE).manual_seed(zlib.crc32(name.encode()))
        shape = self.tensors[name].shape
        drawn = torch.randn(shape, generator=generator, device=DEVICE)
        drawn = 1 + 0.1 * drawn if len(shape) == 1 else drawn.mul_(shape[1] ** -0.5)
        return drawn.cpu()


def write_checkpoint(config: Mapping[str, Any], directory: Path) -> Path:
    """A checkpoint of this shape with random weights."""
    directory.mkdir()
    dtype = torch.float32 if config["torch_dtype"] == "float32" else torch.bfloat16
    shapes = expected_tensors(ModelConfig.parse(config))
    tensors = {name: TensorInfo(name, shape, torch.float32, Path()) for name, shape in shapes.items()}
    (directory / "config.json").write_text(json.dumps(config))
    path = directory / "model.safetensors"
    write_safetensors(Drawn(tensors), list(tensors.values()), path, dtype, lambda *_: None)  # type: ignore[arg-type]
    return directory


@contextmanager
def running(source: Path, tensor: int, stages: int, **changes: str) -> Iterator[tuple[RankGroup, int, float]]:
    """A group that has formed epoch 1, its blocks, and the seconds from process start until then."""
    environment = {
        Env.DEVICE: DEVICE,
        Env.MAX_MODEL_LENGTH: "8192",
        Env.MAX_RUNNING_REQUESTS: str(SLOTS),
        Env.MAX_BATCHED_TOKENS: str(BUDGET),
        **changes,
    }
    with tempfile.TemporaryDirectory() as state:
        begin = time.perf_counter()
        try:
            with rank_group(source, Path(state), tensor, stages, environment) as group:
                blocks = group.load()
                group.form(1)
                yield group, blocks, time.perf_counter() - begin
        except BaseException:
            for log in sorted(Path(state).glob("*.log")):
                print(f"-- {log.name}\n{log.read_text()[-3000:]}", flush=True)
            raise


def drive(
    group: RankGroup, blocks: int, requests: Sequence[Request], *, slots: int = SLOTS, hot: bool = False
) -> dict[str, Any]:
    """Run all requests to their ends; what was drawn, when results came, how long it took."""
    depth = max(group.stages + 1, 2)
    scheduler = Scheduler(SchedulerConfig(slots, BUDGET, stages=group.stages, depth=depth, prefix_caching=False))
    scheduler.begin(group.epoch, blocks, b"")
    for number, (prompt, count) in enumerate(requests):
        sampling = Sampling(temperature=0.8 if hot and number % 2 else 0.0, seed=number)
        scheduler.submit(Submit(number, str(number), pack_ids(prompt), sampling, count), float(number))
    drawn: list[list[int]] = [[] for _ in requests]
    times = []
    flying = 0
    start = time.perf_counter()
    while True:
        plan = scheduler.plan()
        if plan is not None:
            group.send_plan(plan)
            flying += 1
            continue
        if not flying:
            break
        for emission in scheduler.complete(group.receive_result()):
            drawn[emission.sequence.request.key] += unpack_ids(emission.ids)
        flying -= 1
        times.append(time.perf_counter())
    return {"ids": drawn, "times": times, "seconds": time.perf_counter() - start}


def uniform(vocabulary: int, count: int, low: int, high: int) -> list[Request]:
    """Lengths in and out drawn evenly: the peers' uniform256 for 256, 100 and 1024."""
    lengths, tokens = random.Random(0), random.Random(1)
    pairs = [(lengths.randint(low, high), lengths.randint(low, high)) for _ in range(count)]
    return [([tokens.randrange(10, vocabulary - 10) for _ in range(a)], b) for a, b in pairs]


def fixed(vocabulary: int, count: int, given: int, wanted: int) -> list[Request]:
    tokens = random.Random(2)
    return [([tokens.randrange(10, vocabulary - 10) for _ in range(given)], wanted) for _ in range(count)]


def check(directory: Path, layouts: Sequence[tuple[int, int]]) -> dict[str, str]:
    """Ids of a small float32 model, greedy and sampled, against one GPU."""
    source = write_checkpoint(SMALL, directory / "small")
    requests = uniform(SMALL["vocab_size"], 24, 5, 90)  # type: ignore[arg-type]
    exact = {Env.KV_BYTES: str(1 << 28), Env.MODEL_DTYPE: "float32"}
    found = {}
    for tensor, stages in ((1, 1), *layouts):
        with running(source, tensor, stages, **exact) as (group, blocks, _):
            found[f"{tensor}x{stages}"] = drive(group, blocks, requests, hot=True)["ids"]
    one = found["1x1"]
    return {name: f"{sum(a == b for a, b in zip(ids, one, strict=True))}/{len(one)}" for name, ids in found.items()}


def latency(group: RankGroup, blocks: int, vocabulary: int, context: int) -> float:
    """Median milliseconds between tokens of one request."""
    times = drive(group, blocks, fixed(vocabulary, 1, context, 160))["times"][16:]
    return 1e3 * float(statistics.median(b - a for a, b in pairwise(times)))


def throughput(group: RankGroup, blocks: int, requests: Sequence[Request], slots: int = SLOTS) -> int:
    """Output tokens per second."""
    seconds: float = drive(group, blocks, requests, slots=slots)["seconds"]
    return round(sum(count for _, count in requests) / seconds)


def kill(group: RankGroup, blocks: int, vocabulary: int, turn: int) -> dict[str, Any]:
    """Kill one rank under load, as a supervisor would hear of it; times from the signal, and whether all is right."""
    requests = fixed(vocabulary, 8, 50, 60)
    before = drive(group, blocks, requests)["ids"]
    places = sorted(group.ranks)
    place = places[turn % len(places)]
    others = {other: one.process.pid for other, one in group.ranks.items() if other != place}
    load = threading.Thread(target=_until_lost, args=(group, blocks, fixed(vocabulary, 64, 100, 4000)), daemon=True)
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
    after = drive(group, blocks, requests)["ids"]
    survived = all(group.ranks[other].process.pid == pid for other, pid in others.items())
    return {"idle_s": round(idle, 3), "serving_s": round(serving, 2), "right": after == before, "survived": survived}


def _until_lost(group: RankGroup, blocks: int, requests: Sequence[Request]) -> None:
    try:
        drive(group, blocks, requests)
    except (WireError, OSError, ValueError):
        return  # the connections went with the epoch


def measure(source: Path, config: Mapping[str, Any], layout: tuple[int, int], cases: Sequence[str]) -> dict[str, Any]:
    """All cases of one layout."""
    vocabulary = config["vocab_size"]
    report: dict[str, Any] = {}
    with running(source, *layout) as (group, blocks, seconds):
        report |= {"start_to_formed_s": round(seconds, 1), "kv_blocks": blocks}
        print(layout, report, flush=True)
        drive(group, blocks, fixed(vocabulary, 32, 200, 8))  # compiles what eager steps need
        if "latency" in cases:
            report["latency_ms"] = {n: round(latency(group, blocks, vocabulary, n), 3) for n in (500, 4000)}
            print(report["latency_ms"], flush=True)
        if "uniform256" in cases:
            report["uniform256_tok_s"] = throughput(group, blocks, uniform(vocabulary, 256, 100, 1024))
            print(report["uniform256_tok_s"], flush=True)
        if "kill" in cases:
            report["kill"] = [kill(group, blocks, vocabulary, turn) for turn in range(2)]
            print(report["kill"], flush=True)
    return report


def _large(
    config: Mapping[str, Any], layouts: Sequence[tuple[int, int]], cases: Sequence[str], scratch: Path
) -> dict[str, Any]:
    begin = time.perf_counter()
    source = write_checkpoint(config, scratch / "large")
    torch.cuda.empty_cache()
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
