"""T17: whatever is missing, cut or of the wrong kind is refused with its name, and nothing stays random."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme.api import InferenceDeployment, parse
from bireme.cli.errors import Refused
from bireme.cli.shape import check_shape
from bireme.names import Exit
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.shards.convert import convert_sharded
from tests.checkpoints.tiny import save_tiny
from tests.support.rank_threads import threaded_ranks

NORM = "model.norm.weight"


def change(directory: Path, act: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of whichever file holds the last norm."""
    for file in directory.glob("*.safetensors"):
        tensors = load_file(file)
        if NORM in tensors:
            act(tensors)
            save_file(tensors, file, {"format": "pt"})


def delete_a_shard(directory: Path) -> str:
    index: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    (directory / index[NORM]).unlink()
    return index[NORM]


def truncate_a_file(directory: Path) -> str:
    file = sorted(directory.glob("*.safetensors"))[1]
    os.truncate(file, file.stat().st_size - 4)
    return rf"{file.name} is \d+ bytes, its header needs \d+"


def drop_a_tensor(directory: Path) -> str:
    change(directory, lambda tensors: tensors.__delitem__(NORM))
    return NORM


def change_a_dtype(directory: Path) -> str:
    change(directory, lambda tensors: tensors.update({NORM: tensors[NORM].to(torch.int32)}))
    return rf"{NORM} is of type torch.int32, must be torch.bfloat16 or"


def change_to_an_unknown_dtype(directory: Path) -> str:
    change(directory, lambda tensors: tensors.update({NORM: tensors[NORM].double()}))
    return rf"{NORM} is of type F64"


def change_a_shape(directory: Path) -> str:
    change(directory, lambda tensors: tensors.update({NORM: tensors[NORM][:-1].clone()}))
    return rf"{NORM} is \(63,\), must be \(64,\)"


BREAKS = (
    delete_a_shard,
    truncate_a_file,
    drop_a_tensor,
    change_a_dtype,
    change_to_an_unknown_dtype,
    change_a_shape,
)


@pytest.mark.parametrize("act", BREAKS, ids=lambda act: act.__name__)
def test_t17_an_incomplete_checkpoint_is_refused_by_name_on_every_rank(
    tmp_path: Path, act: Callable[[Path], str]
) -> None:
    save_tiny(tmp_path, max_shard_size="60KB")
    words = act(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        threaded_ranks(tmp_path, 2).__enter__()


def deployment(path: Path) -> InferenceDeployment:
    return parse(
        {
            "apiVersion": "bireme.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": "tiny"},
            "spec": {"model": {"source": {"path": str(path)}, "revision": "1"}, "parallelism": {"tensor": 2}},
        }
    )


@pytest.mark.parametrize("act", BREAKS[:2], ids=lambda act: act.__name__)
def test_t17_what_headers_and_sizes_tell_is_refused_before_a_rank_starts(
    tmp_path: Path, act: Callable[[Path], str]
) -> None:
    save_tiny(tmp_path, max_shard_size="60KB")
    wanted = deployment(tmp_path)
    check_shape(wanted, tmp_path)
    words = act(tmp_path)
    with pytest.raises(Refused, match=words) as refused:
        check_shape(wanted, tmp_path)
    assert refused.value.exit_code == Exit.BAD_CHECKPOINT


def test_t17_files_cut_for_another_layout_are_refused_before_a_rank_starts(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf")
    for tensor in (1, 2):
        convert_sharded(tmp_path / "hf", tmp_path / f"cut{tensor}", tensor=tensor, pipeline=1)
    check_shape(deployment(tmp_path / "cut2"), tmp_path / "cut2")
    with pytest.raises(Refused, match=r"bireme convert .*cut1 .* --tensor 2 --pipeline 1") as refused:
        check_shape(deployment(tmp_path / "cut1"), tmp_path / "cut1")
    assert refused.value.exit_code == Exit.BAD_CONFIGURATION
    os.truncate(tmp_path / "cut2" / "stage-0-rank-0.safetensors", 100)
    with pytest.raises(Refused, match=r"rank-0.safetensors is 100 bytes"):
        check_shape(deployment(tmp_path / "cut2"), tmp_path / "cut2")
