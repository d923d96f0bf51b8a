"""GPTQ, AWQ and fp8 files of an independent packer answer as the dense weights they stand for, on any layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bireme_worker.checkpoints.errors import CheckpointError, CorruptFile, UnsupportedCheckpoint
from bireme_worker.models.errors import CannotQuantize
from bireme_worker.quant.matrix import Fp8Matrix
from tests.checkpoints.tiny import change_json
from tests.quantization.packers import AWQ, Matrix, Packed, awq, compressed, fp8, gptq, gptq_settings, rewrite
from tests.quantization.reference import answers, equals_rounded_inputs, farthest
from tests.support.rank_threads import threaded_ranks

LAYOUTS = [(1, 1), (2, 1), (2, 2)]
GPTQ: dict[str, dict[str, Any]] = {
    "v1": {},
    "v2": {"version": 2},
    "8 bits": {"bits": 8},
    "groups of 32": {"group": 32},
    "desc_act": {"act_order": True},
    "desc_act v2": {"act_order": True, "version": 2},
}
EXACT = 2e-4


@pytest.mark.parametrize("form", GPTQ)
def test_gptq_answers_as_its_dense_weights(tmp_path: Path, form: str) -> None:
    model = rewrite(tmp_path, gptq(**GPTQ[form]), gptq_settings(**GPTQ[form]))
    for tensor, stages in LAYOUTS:
        assert farthest(model, answers(tmp_path, tensor, stages)) < EXACT


def test_awq_answers_as_its_dense_weights(tmp_path: Path) -> None:
    model = rewrite(tmp_path, awq(), AWQ)
    for tensor, stages in LAYOUTS:
        assert farthest(model, answers(tmp_path, tensor, stages)) < EXACT


@pytest.mark.parametrize("strategy", ["tensor", "channel"])
def test_fp8_with_a_scale_per_token_equals_a_fake_quantized_reference(tmp_path: Path, strategy: str) -> None:
    model = rewrite(tmp_path, fp8(channel=strategy == "channel"), compressed(strategy, dynamic=True))
    for stages in (1, 2):
        assert equals_rounded_inputs(model, answers(tmp_path, 1, stages))


def test_fp8_with_a_scale_of_the_checkpoint_equals_a_fake_quantized_reference_on_any_layout(tmp_path: Path) -> None:
    model = rewrite(tmp_path, fp8(channel=False, static=0.01), {"quant_method": "fp8", "activation_scheme": "static"})
    for tensor, stages in LAYOUTS:
        assert equals_rounded_inputs(model, answers(tmp_path, tensor, stages), 0.01)


@pytest.mark.parametrize("static", [None, 0.01])
def test_a_product_of_fp8_is_that_of_the_rounded_inputs_and_weights(static: float | None) -> None:
    torch.manual_seed(2)
    parts, dense = fp8(channel=True)(torch.randn(700, 512).numpy())
    scale = None if static is None else torch.tensor([static])
    matrix = Fp8Matrix(parts["weight"], parts["weight_scale"].flatten(), scale)
    x = torch.randn(9, 512)
    own = x.abs().amax(1, keepdim=True) / 448 if scale is None else scale
    rounded = (x / own).clamp(-448, 448).to(torch.float8_e4m3fn).double() * own
    assert torch.allclose(matrix.multiply(x).double(), rounded @ torch.from_numpy(dense).double().t(), atol=1e-3)


def test_one_group_per_row_works_where_rows_are_whole(tmp_path: Path) -> None:
    model = rewrite(tmp_path, gptq(group=-1), gptq_settings(group=-1))
    assert farthest(model, answers(tmp_path)) < EXACT
    with pytest.raises(CannotQuantize, match=r"o_proj.weight: this shard takes inputs 0 to 64 of 128, .* hold 128"):
        threaded_ranks(tmp_path, 2).__enter__()


@pytest.mark.parametrize(
    ("pack", "settings", "message"),
    [
        (gptq(group=128), gptq_settings(group=128), r"inputs 0 to 64 of 128, but quantization groups hold 128"),
        (awq(group=128), {**AWQ, "group_size": 128}, r"inputs 0 to 64 of 128, but quantization groups hold 128"),
    ],
)
def test_an_edge_inside_a_group_is_refused_with_the_numbers(
    tmp_path: Path, pack: Callable[[Matrix], Packed], settings: dict[str, Any], message: str
) -> None:
    rewrite(tmp_path, pack, settings)
    with pytest.raises(CannotQuantize, match=message):
        threaded_ranks(tmp_path, 2).__enter__()


def test_an_edge_inside_a_packed_word_is_refused_with_the_numbers(tmp_path: Path) -> None:
    rewrite(tmp_path, awq(), AWQ, intermediate_size=320, num_key_value_heads=4)
    with pytest.raises(CannotQuantize, match=r"down_proj.weight: this shard takes inputs 0 to 160 of 320, but .* 64"):
        threaded_ranks(tmp_path, 2).__enter__()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not supported"),
        ({"bits": 3}, "gptq with 3 bits is not supported, only 4 and 8"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"group_size": 1}, "group_size must be -1 or"),
        ({"dynamic": {"+:x": {}}}, "dynamic mixes formats"),
        ({"quant_method": "awq", "version": "gemv"}, "awq of version 'gemv'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, r"fp8 in blocks of \[128, 128\]"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "format 'pack-quantized'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(tmp_path, gptq(), {**gptq_settings(), **changes}, num_hidden_layers=1)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        threaded_ranks(tmp_path).__enter__()


@pytest.mark.parametrize("lost", ["qweight", "qzeros", "scales", "g_idx"])
def test_a_missing_part_of_a_layer_is_named(tmp_path: Path, lost: str) -> None:
    rewrite(tmp_path, gptq(), gptq_settings(), num_hidden_layers=1)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = f"model.layers.0.mlp.down_proj.{lost}"
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=name if lost != "qweight" else "down_proj.weight"):
        threaded_ranks(tmp_path).__enter__()


def test_an_order_that_the_config_denies_is_refused(tmp_path: Path) -> None:
    rewrite(tmp_path, gptq(act_order=True), gptq_settings(), num_hidden_layers=1)
    with pytest.raises(CorruptFile, match=r"g_idx is out of order, but config.json has desc_act false"):
        threaded_ranks(tmp_path).__enter__()


def test_half_quantized_projections_that_are_computed_as_one_are_refused(tmp_path: Path) -> None:
    model = rewrite(tmp_path, gptq(), gptq_settings(), num_hidden_layers=1)
    file = tmp_path / "model.safetensors"
    name = "model.layers.0.self_attn.k_proj"
    tensors = {key: value for key, value in load_file(file).items() if not key.startswith(f"{name}.")}
    save_file({**tensors, f"{name}.weight": model.state_dict()[f"{name}.weight"]}, file)
    with pytest.raises(UnsupportedCheckpoint, match="some are quantized and some not"):
        threaded_ranks(tmp_path).__enter__()


def test_a_layer_that_was_left_plain_is_served_plain(tmp_path: Path) -> None:
    model = rewrite(tmp_path, gptq(), gptq_settings(), num_hidden_layers=1)
    file = tmp_path / "model.safetensors"
    name = "model.layers.0.mlp.down_proj"
    tensors = {key: value for key, value in load_file(file).items() if not key.startswith(f"{name}.")}
    save_file({**tensors, f"{name}.weight": model.state_dict()[f"{name}.weight"]}, file)
    change_json(tmp_path / "config.json")
    assert farthest(model, answers(tmp_path)) < EXACT
