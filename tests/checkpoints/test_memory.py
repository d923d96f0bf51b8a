"""A rank's anonymous memory grows by what it reads, whatever the size of the file. Measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bireme_worker.checkpoints.packaged import smollm2_gguf

MIB = 1 << 20

# Argument 1 is a checkpoint, argument 2 a list of [tensor, [start, stop] per dimension]. The tensors are kept, as a rank would.
MEASURE = """
import json, sys
from pathlib import Path
from bireme_worker.checkpoints.open import open_checkpoint
import torch

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))

torch.set_num_threads(1)
before = anonymous()
reader = open_checkpoint(Path(sys.argv[1]))
kept = [reader.read(name, tuple(slice(*pair) for pair in cut)) for name, cut in json.loads(sys.argv[2])]
print(json.dumps({"read": sum(t.nbytes for t in kept), "grown": anonymous() - before}))
"""


def measure(path: Path, reads: list[tuple[str, list[list[int]]]]) -> tuple[int, int]:
    command = [sys.executable, "-c", MEASURE, str(path), json.dumps(reads)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["read"], result["grown"]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tensor of 256 MiB."""
    path = tmp_path_factory.mktemp("big")
    save_file({"w": torch.ones(8192, 8192)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return path


@pytest.mark.parametrize("cut", [[[0, 1024]], [[0, 8192], [1024, 2048]], [[100, 101]]])
def test_reading_a_slice_of_safetensors_costs_the_slice(big: Path, cut: list[list[int]]) -> None:
    read, grown = measure(big, [("w", cut)])
    assert read < 33 * MIB
    assert grown < read + 8 * MIB


def test_reading_a_third_of_each_layer_of_gguf_costs_a_third(big: Path) -> None:
    reads = [
        (f"model.layers.{layer}.mlp.{part}_proj.weight", [[0, 512]]) for layer in range(30) for part in ("up", "gate")
    ]
    reads += [(f"model.layers.{layer}.mlp.down_proj.weight", [[0, 576], [512, 1024]]) for layer in range(30)]
    read, grown = measure(smollm2_gguf(), reads)
    assert read == 30 * 3 * 512 * 576 * 4
    assert grown < 1.1 * read + 24 * MIB  # the vocabulary of the metadata and the tables of the dequantizer included
