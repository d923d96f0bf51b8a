"""What a rank takes of a machine's memory, measured on the real model."""

import json
import time
from pathlib import Path

import pytest
import torch

from bireme.wire.plan import Sampling
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.registry import build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from tests.support.generation import Request, generate
from tests.support.rank_group import RankProcess, rank_group

ALLOWED_SHARE = 1.3
ALLOWED_BYTES = 100_000_000


def anonymous_bytes(rank: RankProcess) -> int:
    lines = Path(f"/proc/{rank.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def wait_for_idle(rank: RankProcess) -> None:
    deadline = time.monotonic() + 90
    while rank.beat is None or rank.beat.phase != "Idle":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def share(source: Path, stage: int, stages: int) -> int:
    config = ModelConfig.parse(json.loads((source / "config.json").read_text()))
    model = build(config, stage_layers(config, stage, stages), Shard(0, 1), torch.float32)
    return sum(weight.nbytes for weight in model.weights())


@pytest.mark.system
def test_a_rank_takes_its_share_of_the_weights_and_little_more(smollm2_dir: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with rank_group(smollm2_dir, tmp_path, stages=2) as group:
        ranks = list(group.ranks.values())
        for rank in ranks:
            wait_for_idle(rank)
        before = [anonymous_bytes(rank) for rank in ranks]
        blocks = group.load()
        loaded = [anonymous_bytes(rank) for rank in ranks]
        group.form(1)
        long = (blocks - 12) * 16  # nearly the whole cache, in full chunks, beside requests that use every table
        sampling = Sampling(temperature=0.8, seed=1, presence_penalty=0.5, logit_bias={5: 1.0}, logprobs=5, top_p=0.9)
        requests = [Request(torch.randint(0, 49152, (length,)).tolist(), 8, sampling) for length in (long, 5, 5, 5)]
        generate(group, requests)
        served = [anonymous_bytes(rank) for rank in ranks]
    for stage, rank in enumerate(ranks):
        weights = share(smollm2_dir, stage, 2)
        growth = served[stage] - before[stage]
        print(
            f"stage {rank.stage}: weights {weights / 1e6:.0f} MB, loaded {(loaded[stage] - before[stage]) / 1e6:.0f} MB, "
            f"served {growth / 1e6:.0f} MB"
        )
        assert growth <= ALLOWED_SHARE * weights + ALLOWED_BYTES
