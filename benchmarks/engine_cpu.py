"""The engine on a CPU beside transformers and llama.cpp, in one run: SmolLM2-135M in float32, greedy, two cores.

`python benchmarks/engine_cpu.py` serves 1, 8 and 32 requests at a time with output lengths uniform in 16 to 256
(seeded): as one rank with one and with two threads, and as two stages of one thread. transformers generates the same
requests in batches of that size, with two threads; a batch lasts as long as its longest request. llama.cpp runs where
`--llama PYTHON` names an interpreter that has llama-cpp-python. Then the same for a full batch of equal lengths.
`gemm_share`: part of a step's time that the matrix products of projections and head take; with the products inside
attention it is `gemm_share_with_attention`; one thread, by concurrency. `step_overhead_ms`: a step of a tiny model on
real processes less its computation alone: scheduling and process hops. Last line: JSON. The ratios are of our fastest
layout. The machine is shared: judge ratios of one run.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

from bireme_worker import LLM, SamplingParams
from bireme_worker.checkpoints.packaged import ensure_smollm2, smollm2_gguf

ROOT = Path(__file__).resolve().parent.parent
KV_BYTES = 1 << 30
CORES = 2


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt: list[int]
    tokens: int


def jobs(count: int, low: int, high: int, seed: int = 1) -> list[Job]:
    """Prompts of 16 to 64 random tokens; outputs uniform in ``low`` to ``high``."""
    draw = random.Random(seed)
    return [
        Job([draw.randint(100, 49_000) for _ in range(draw.randint(16, 64))], draw.randint(low, high))
        for _ in range(count)
    ]


def timed(compute: Callable[[], object], work: Sequence[Job]) -> float:
    """Output tokens per second."""
    begin = time.perf_counter()
    compute()
    return sum(job.tokens for job in work) / (time.perf_counter() - begin)


def ours(llm: LLM, work: Sequence[Job], concurrent: int) -> float:
    """All are sent, and the engine runs ``concurrent`` at a time."""
    params = [SamplingParams(temperature=0, max_tokens=job.tokens, ignore_eos=True) for job in work]
    if concurrent > 1:
        return timed(lambda: llm.generate([job.prompt for job in work], params, progress=False), work)

    def one_by_one() -> None:
        for job, one in zip(work, params, strict=True):
            llm.generate(job.prompt, one, progress=False)

    return timed(one_by_one, work)


class Transformers:
    """`generate` in batches, padded on the left."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(CORES)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def run(self, work: Sequence[Job], concurrent: int) -> float:
        """Batches in the order of arrival."""
        batches = [work[at : at + concurrent] for at in range(0, len(work), concurrent)]
        return timed(lambda: [self._generate(batch) for batch in batches], work)

    def _generate(self, batch: Sequence[Job]) -> int:
        torch, width = self._torch, max(len(job.prompt) for job in batch)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in batch])
        mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
        tokens = max(job.tokens for job in batch)
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0
            )
        return tokens


def llama(python: str, folder: Path, work: Sequence[Job], concurrent: int) -> float:
    """llama.cpp in a process of its own; see peers/llama_cpp_batch.py."""
    asked = {
        "gguf": str(smollm2_gguf()),
        "float32": str(folder / "smollm2-f32.gguf"),
        "threads": CORES,
        "concurrent": concurrent,
        "jobs": [[job.prompt, job.tokens] for job in work],
    }
    command = [python, str(ROOT / "benchmarks/peers/llama_cpp_batch.py")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


# -- shares of a step


@contextmanager
def stopwatch(owner: Any, name: str, total: list[float]) -> Iterator[None]:
    """Add up the time in ``owner.name``."""
    function = getattr(owner, name)

    def measured(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = function(*args, **options)
        total[0] += time.perf_counter() - begin
        return result

    setattr(owner, name, measured)
    try:
        yield
    finally:
        setattr(owner, name, function)


def shares(model: Path, work: Sequence[Job], concurrent: int) -> dict[str, float]:
    """One rank's steps in this process, one thread, driven by the scheduler without any hop."""
    import torch
    from torch.nn import functional

    from benchmarks.peers.one_rank import OneRank
    from bireme_worker.models.layers import linear, vocabulary

    torch.set_num_threads(1)
    rank = OneRank(model, KV_BYTES, concurrent)
    rank.run([(job.prompt, 4) for job in work[:concurrent]])
    products, attention = [0.0], [0.0]
    with (
        stopwatch(linear, "multiply", products),
        stopwatch(vocabulary, "multiply", products),
        stopwatch(functional, "scaled_dot_product_attention", attention),
    ):
        spent = rank.run([(job.prompt, job.tokens) for job in work])
    torch.set_num_threads(CORES)
    return {
        "gemm_share": round(products[0] / spent.compute_s, 3),
        "gemm_share_with_attention": round((products[0] + attention[0]) / spent.compute_s, 3),
        "step_ms": round(1e3 * spent.compute_s / spent.steps, 2),
        "scheduler_ms": round(1e3 * spent.schedule_s / spent.steps, 3),
    }


def overhead_ms(tokenizer: Path, folder: Path, concurrent: int, tokens: int) -> float:
    """Per step: real processes (1 × 1, one thread) less computation alone."""
    import torch

    from benchmarks.peers.one_rank import OneRank
    from tests.checkpoints.tiny import save_tiny

    model = folder / "tiny"
    save_tiny(model, vocab_size=49152, max_position_embeddings=2048)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, model)
    work = [Job([5 + number] * 8, tokens) for number in range(concurrent)]
    torch.set_num_threads(1)
    rank = OneRank(model, 64 << 20, concurrent)
    rank.run([(job.prompt, 8) for job in work])
    spent = rank.run([(job.prompt, job.tokens) for job in work])
    with LLM(model, max_running_requests=concurrent, kv_cache_bytes=64 << 20) as llm:
        ours(llm, work[:2], 2)
        rate = max(ours(llm, work, concurrent) for _ in range(3))
    torch.set_num_threads(CORES)
    return 1e3 * (concurrent * tokens / rate - spent.compute_s) / spent.steps


# -- the comparison


def compare(
    label: str, work: Sequence[Job], concurrent: int, engines: dict[str, Callable[[Sequence[Job], int], float]]
) -> dict[str, float]:
    """Every engine on the same work; prints a line."""
    rates = {name: run(work, concurrent) for name, run in engines.items()}
    print(f"{label:<22}" + "  ".join(f"{name} {rate:7.1f}" for name, rate in rates.items()), "tokens/s", flush=True)
    return rates


@dataclass(frozen=True)
class Ground:
    """What is compared on what."""

    model: Path
    folder: Path
    peer: Transformers
    llama_python: str | None

    def measure(self, label: str, work: Sequence[Job], concurrent: int) -> dict[str, float]:
        """All engines on one kind of load."""
        engines: dict[str, Callable[[Sequence[Job], int], float]] = {"transformers": self.peer.run}
        if self.llama_python is not None:
            engines["llama.cpp"] = partial(llama, self.llama_python, self.folder)
        rates = compare(label, work, concurrent, engines)
        for stages, threads in ((1, 1), (1, CORES), (CORES, 1)):
            name = f"bireme {stages} stage{'s' * (stages > 1)} x {threads} thread{'s' * (threads > 1)}"
            size = KV_BYTES // stages
            with LLM(
                self.model, pipeline=stages, threads=threads, max_running_requests=concurrent, kv_cache_bytes=size
            ) as llm:
                llm.generate([[1, 2, 3]] * 2, SamplingParams(max_tokens=2), progress=False)
                rates |= compare("", work, concurrent, {name: partial(ours, llm)})
        return rates


def main() -> None:
    """Run it all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter outputs, less than two minutes")
    parser.add_argument("--llama", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    options = parser.parse_args()
    low, high, equal = (16, 64, 32) if options.quick else (16, 256, 128)
    cache = os.environ.get("BIREME_CACHE_DIR")
    model = ensure_smollm2(Path(cache) if cache else Path.home() / ".cache" / "bireme")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        ground = Ground(model, Path(name), Transformers(model), options.llama)
        figures["step_overhead_ms"] = round(overhead_ms(model, Path(name), 32, 100), 2)
        for concurrent in (1, 8, 32):
            part = shares(model, jobs(concurrent, low, high), concurrent)
            print(f"{concurrent} concurrent: {part}", flush=True)
            figures |= part if concurrent == 32 else {f"gemm_share_{concurrent}": part["gemm_share"]}
        for concurrent in (1, 8, 32):
            count = max(concurrent, 2) if options.quick else max(2 * concurrent, 4)
            rates = ground.measure(f"{concurrent} concurrent", jobs(count, low, high), concurrent)
            figures[f"tokens_per_s_{concurrent}"] = {name: round(rate, 1) for name, rate in rates.items()}
            figures[f"ratio_transformers_{concurrent}"] = round(best(rates) / rates["transformers"], 2)
        rates = ground.measure("32 of equal length", jobs(32, equal, equal), 32)
        figures["ratio_full_batch"] = round(best(rates) / rates["transformers"], 2)
    print(json.dumps(figures))


def best(rates: dict[str, float]) -> float:
    """Our faster layout."""
    return max(rate for name, rate in rates.items() if name.startswith("bireme"))


if __name__ == "__main__":
    main()
