"""Every tensor is accounted for, and all that is wrong is said at once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme_worker.checkpoints.accounting import account
from bireme_worker.checkpoints.errors import CheckpointError, MissingTensor, UnexpectedTensor, WrongShape
from bireme_worker.checkpoints.open import open_checkpoint
from tests.checkpoints.tiny import change_json, save_tiny

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture
def expected(tmp_path: Path) -> Shapes:
    model = save_tiny(tmp_path)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def edit(directory: Path, *, add: dict[str, torch.Tensor] | None = None, drop: str = "") -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(drop, None)
    save_file({**tensors, **(add or {})}, directory / "model.safetensors")


def check(directory: Path, expected: Shapes) -> None:
    reader = open_checkpoint(directory)
    try:
        account(expected, reader)
    finally:
        reader.close()


def test_a_whole_checkpoint_passes(tmp_path: Path, expected: Shapes) -> None:
    check(tmp_path, expected)


def test_a_missing_tensor_is_named(tmp_path: Path, expected: Shapes) -> None:
    edit(tmp_path, drop="model.norm.weight")
    with pytest.raises(MissingTensor, match=r"1 missing: model\.norm\.weight"):
        check(tmp_path, expected)


def test_a_leftover_tensor_is_named(tmp_path: Path, expected: Shapes) -> None:
    edit(tmp_path, add={"model.layers.7.mlp.up_proj.weight": torch.ones(2)})
    with pytest.raises(UnexpectedTensor, match=r"1 unexpected: model\.layers\.7\.mlp\.up_proj\.weight"):
        check(tmp_path, expected)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path, expected: Shapes) -> None:
    edit(tmp_path, add={"model.norm.weight": torch.ones(63)})
    with pytest.raises(WrongShape, match=r"model.norm.weight is \(63,\), must be \(64,\)"):
        check(tmp_path, expected)


def test_all_faults_are_in_one_message(tmp_path: Path, expected: Shapes) -> None:
    edit(tmp_path, drop="lm_head.weight", add={"model.norm.weight": torch.ones(63), "odd": torch.ones(1)})
    with pytest.raises(CheckpointError) as caught:
        check(tmp_path, expected)
    for words in ["1 missing: lm_head.weight", "1 wrong shape: model.norm.weight", "1 unexpected: odd"]:
        assert words in str(caught.value)


def test_a_message_about_hundreds_of_tensors_stays_readable(tmp_path: Path, expected: Shapes) -> None:
    more = {f"extra.{number}": (1,) for number in range(500)}
    with pytest.raises(MissingTensor, match=r"500 missing.* and 480 more"):
        check(tmp_path, {**expected, **more})


def test_an_old_rotary_table_is_let_pass(tmp_path: Path, expected: Shapes) -> None:
    edit(tmp_path, add={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    check(tmp_path, expected)


@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_of_tied_embeddings_passes_only_when_they_are_tied(tmp_path: Path, expected: Shapes, tied: bool) -> None:
    change_json(tmp_path / "config.json", tie_word_embeddings=tied)
    body = {name: shape for name, shape in expected.items() if name != "lm_head.weight"}
    if tied:
        check(tmp_path, body)
    else:
        with pytest.raises(UnexpectedTensor, match=r"lm_head\.weight"):
            check(tmp_path, body)
