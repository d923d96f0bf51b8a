"""The next weights beside the served ones: verified, refused with the numbers, dropped when nobody wants them any more."""

import hashlib
import os
import shutil
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from bireme.wire.control import Checkpoint, Discard, Prepared, Stage
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import StageModel
from bireme_worker.rank.loading import load_runner, read_beside
from bireme_worker.rank.staging import Stager, Wrap
from tests.checkpoints.tiny import change_json, save_tiny
from tests.support.rank_threads import identity


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    save_tiny(directory)
    return directory


class Bench:
    """A loaded runner, a stager beside it, and what it says."""

    def __init__(self, served: Path) -> None:
        self.pod = identity(served)
        self.runner = load_runner(self.pod, 0, self.pod.checkpoint, Progress())
        self.said: SimpleQueue[Prepared] = SimpleQueue()
        self.stager = Stager(0, self._read, self.said.put)
        self.stager.serves(self.runner.model, self.runner.device)

    def _read(self, checkpoint: Checkpoint, served: ModelConfig, wrap: Wrap) -> StageModel:
        return read_beside(self.pod, 0, checkpoint, served, wrap)

    def stage(self, source: Path, generation: int = 1) -> Prepared:
        self.stager.hear(Stage(Checkpoint(str(source), "2", generation)))
        return self.said.get(timeout=30)


@pytest.fixture
def bench(served: Path) -> Bench:
    return Bench(served)


def with_sums(directory: Path) -> Path:
    digest = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    (directory / "SHA256SUMS").write_text(f"{digest}  model.safetensors\n")
    return directory


def copy(served: Path, target: Path) -> Path:
    shutil.copytree(served, target)
    return target


def test_flipped_bytes_are_refused_where_the_checkpoint_brings_checksums(
    bench: Bench, served: Path, tmp_path: Path
) -> None:
    target = with_sums(copy(served, tmp_path / "b"))
    assert bench.stage(target, 1).error == ""
    with (target / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert "model.safetensors has SHA-256" in bench.stage(target, 2).error
    (target / "SHA256SUMS").write_text("0" * 64 + "  config.json\n")
    assert "has no line for model.safetensors" in bench.stage(target, 3).error
    (target / "SHA256SUMS").unlink()
    assert bench.stage(target, 4).error == "", "without checksums nobody can tell"


def test_staged_weights_are_taken_once_and_only_by_their_generation(bench: Bench, served: Path) -> None:
    assert bench.stage(served, generation=4) == Prepared(4, 0, "")
    assert bench.stager.take(generation=3) is None
    staged = bench.stager.take(generation=4)
    assert staged is not None
    assert staged.model is not None
    assert bench.stager.take(generation=4) is None
    old = bench.runner.exchange(staged.model)
    pairs = zip(old.weights(), bench.runner.model.weights(), strict=True)
    assert all(torch.equal(_dense(one.tensor), _dense(other.tensor)) for one, other in pairs)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_mkldnn else tensor


def test_what_is_derived_from_the_configuration_comes_with_the_weights(
    bench: Bench, served: Path, tmp_path: Path
) -> None:
    other = copy(served, tmp_path / "other")
    save_tiny(other, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert bench.stage(other).error == ""
    staged = bench.stager.take(generation=1)
    assert staged is not None
    assert staged.model is not None
    assert staged.model.config.rope_theta == 500.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 32}, "hidden_size is 32, served is 64"),
        ({"vocab_size": 132}, "vocab_size is 132, served is 131"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, served is 2"),
        ({"max_position_embeddings": 128}, "max_position_embeddings is 128, served is 256"),
    ],
)
def test_other_shapes_are_refused_with_both_values(
    bench: Bench, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    save_tiny(tmp_path, **change)
    said = bench.stage(tmp_path)
    assert words in said.error
    assert bench.stager.take(generation=1) is None


def test_truncated_missing_and_quantized_checkpoints_are_refused_by_name(
    bench: Bench, served: Path, tmp_path: Path
) -> None:
    short = copy(served, tmp_path / "short")
    os.truncate(short / "model.safetensors", 100_000)
    assert "model.safetensors" in bench.stage(short).error
    assert "does not exist" in bench.stage(tmp_path / "nothing", generation=2).error
    packed = copy(served, tmp_path / "packed")
    change_json(packed / "config.json", quantization_config={"quant_method": "fp8"})
    assert "quantization is fp8 8 bits, served is None" in bench.stage(packed, generation=3).error


def test_what_was_discarded_can_not_be_taken_and_the_next_attempt_is_told_apart(bench: Bench, served: Path) -> None:
    bench.stager.hear(Stage(Checkpoint(str(served), "2", 1)))
    bench.stager.hear(Discard(1))
    assert bench.stager.take(generation=1) is None
    bench.stager.hear(Stage(Checkpoint(str(served), "3", 2)))
    said = bench.said.get(timeout=30)
    while said.generation != 2:
        said = bench.said.get(timeout=30)
    assert said == Prepared(2, 0, "")
    bench.stager.hear(Discard(1))
    assert bench.stager.take(generation=2) is not None
