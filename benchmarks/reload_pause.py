"""The longest silence of a reload: no token on any stream while work is pending, beside the same without a reload.

    python benchmarks/reload_pause.py [--reloads 4] [--streams 8]

One SmolLM2 group of two stages under a constant load of streams; the checkpoint goes back and forth between the real
one and a copy with slightly changed weights, in both modes. Prints one JSON object.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from bireme_operator.local.wish import SIGNAL, Wish, write_wish
from tests.support.deployment import EXAMPLES, Deployment, running, variant
from tests.support.ports import free_port

MODEL = "smollm2-135m-instruct"
QUIET_S = 6.0
LIMIT_S = 120.0


class Gaps(Protocol):
    """What tells how long no token came."""

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without an arrival that touches the window."""
        ...


class Load:
    """Streams without an end; ``arrivals`` has when each event with a token came."""

    def __init__(self, url: str, streams: int) -> None:
        from openai import AsyncOpenAI

        from tests.support.streams import PROMPTS

        self._prompts = PROMPTS
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(streams)]
        self.arrivals: list[float] = []
        self.revisions: set[str] = set()

    async def _ask(self, number: int) -> None:
        while True:
            stream = await self._client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": self._prompts[number % len(self._prompts)]}],
                max_tokens=40 + 7 * number,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            async for chunk in stream:
                self.arrivals.append(time.monotonic())
                self.revisions.add(chunk.system_fingerprint or "")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without an arrival that touches the window."""
        inside = [at for at in self.arrivals if begin - 1 <= at <= end + 1]
        return max((after - at for at, after in pairwise(inside)), default=end - begin)


async def reload(deployment: Deployment, revision: str, mode: str, load: Gaps) -> dict[str, float]:
    """One reload under load: the longest gap from the wish on until a second after the commit."""
    write_wish(deployment.run_dir / deployment.name / "wishes", Wish(f"/models/{revision}", revision, mode))
    begin = time.monotonic()
    deployment.process.send_signal(SIGNAL)
    prepared = 0.0
    while True:
        document = await asyncio.to_thread(deployment.state, 0)
        now = time.monotonic()
        prepared = prepared or (now if document.reload.phase in {"Prepared", "Committing"} else 0.0)
        if document.model_revision == revision and document.reload.phase == "Idle":
            break
        assert document.reload.phase != "Failed", document.reload
        assert now < begin + LIMIT_S, document.reload
        await asyncio.sleep(0.02)
    await asyncio.sleep(1.5)
    end = now + 1
    staged = (prepared or now) - begin
    return {
        "staging_s": round(staged, 2),
        "pause_s": round(load.longest_gap(begin + staged - 0.1, end), 3),
        "longest_gap_while_staging_s": round(load.longest_gap(begin, begin + staged), 3),
    }


async def measure(deployment: Deployment, reloads: int, streams: int) -> dict[str, Any]:
    load = Load(deployment.url, streams)
    try:
        await asyncio.sleep(3)
        begin = time.monotonic()
        await asyncio.sleep(QUIET_S)
        result: dict[str, Any] = {"longest_gap_without_s": round(load.longest_gap(begin, time.monotonic()), 3)}
        for mode in ("finish", "restart"):
            names = ("b", "a") * reloads
            result[mode] = [await reload(deployment, name, mode, load) for name in names[:reloads]]
            if reloads % 2:
                await reload(deployment, "a", mode, load)
    finally:
        await load.stop()
    result["reload_pause_s_max"] = max(one["pause_s"] for mode in ("finish", "restart") for one in result[mode])
    return result | {"revisions": sorted(load.revisions)}


def perturbed(source: Path, target: Path) -> None:
    """A copy with other weights."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    weights = load_file(source / "model.safetensors")
    noisy = {name: one + 0.02 * one.std() * torch.randn_like(one) for name, one in weights.items()}
    save_file(noisy, target / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Run it and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path.home() / ".cache" / "bireme" / MODEL)
    parser.add_argument("--reloads", type=int, default=4, help="per mode")
    parser.add_argument("--streams", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        folder = Path(path)
        models = folder / "models"
        models.mkdir()
        (models / "a").symlink_to(options.model)
        perturbed(options.model, models / "b")
        model = {"name": MODEL, "source": {"path": "/models/a"}, "revision": "a"}
        file = variant(EXAMPLES / "smollm2.yaml", folder, {"replicas": 1, "model": model}, "pause")
        with running(file, folder, free_port(), {"/models": models}) as deployment:
            deployment.wait_serving(1)
            print(json.dumps(asyncio.run(measure(deployment, options.reloads, options.streams)), indent=1))


if __name__ == "__main__":
    main()
