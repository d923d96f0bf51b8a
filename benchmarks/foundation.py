"""The main promise in figures: sixteen streams, a part of a group killed in their midst, every id judged by the oracle.

`python benchmarks/foundation.py` starts two groups of two stages of SmolLM2 and kills a stage-1 rank, a stage-1
supervisor and a leader in turn. Seconds are from the kill: until the group called itself unready, and until it served
again. `lost`: streams without a normal end; `different`: ids that the fp32 reference would not have drawn; `ties`: ids
within the oracle's tolerance of its best. Last line: JSON. The exit code is 1 when a stream was lost or an id is wrong.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bireme_worker.checkpoints.packaged import ensure_smollm2
from tests.support.deployment import EXAMPLES, Deployment, running
from tests.support.oracle import Oracle, Verdict
from tests.support.ports import free_port
from tests.support.streams import Delivery, deliveries
from tests.support.survival import VICTIMS, Killer, survive


def reference(model: Path) -> Any:
    """Transformers' own model in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


async def strike(deployment: Deployment, streams: int, max_tokens: int) -> tuple[list[Killer], list[Delivery]]:
    """One run for each kind of victim."""
    killers, delivered = [], []
    for number, victim in enumerate(VICTIMS, 1):
        wanted = deliveries(seeded=streams // 2, greedy=streams // 2, first_seed=1000 * number)
        killer = await survive(deployment, victim, wanted, max_tokens)
        print(f"{victim}: unready after {killer.unready_after_s:.2f} s, serves after {killer.recovered_after_s:.2f} s")
        killers.append(killer)
        delivered += wanted
    return killers, delivered


def judged(model: Path, delivered: list[Delivery]) -> Verdict:
    """Every id that was delivered, against the reference."""
    oracle = Oracle(reference(model))
    for item in delivered:
        oracle.judge(item.prompt_ids, item.ids, item.sampling, item.label)
    return oracle.verdict


def main() -> int:
    """Run it all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16, help="half greedy, half seeded (%(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="ids of each stream (%(default)s)")
    options = parser.parse_args()
    cache = os.environ.get("BIREME_CACHE_DIR")
    model = ensure_smollm2(Path(cache) if cache else Path.home() / ".cache" / "bireme")
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        mounts = {"/models": model.parent}
        with running(EXAMPLES / "smollm2.yaml", Path(path), free_port(), mounts) as deployment:
            deployment.wait_serving(2)
            killers, delivered = asyncio.run(strike(deployment, options.streams, options.tokens))
    verdict = judged(model, delivered)
    lost = sum(item.finish_reason != "length" or len(item.ids) != options.tokens for item in delivered)
    figures = {
        "unready_s_max": round(max(killer.unready_after_s for killer in killers), 3),
        "recovered_s_max": round(max(killer.recovered_after_s for killer in killers), 3),
        "streams": len(delivered),
        "lost": lost,
        "ids": verdict.tokens,
        "different": len(verdict.wrong),
        "ties": len(verdict.ties),
    }
    print(json.dumps(figures))
    return 1 if lost or verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
