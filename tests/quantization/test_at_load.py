"""Plain weights rounded at load: what is computed is the rounded matrix, it stays packed, and layouts agree."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bireme_worker.checkpoints.quantization import AT_LOAD
from bireme_worker.models.errors import CannotQuantize
from bireme_worker.quant.matrix import GroupedMatrix, Quantized
from bireme_worker.quant.rounding import pack_nibbles, round_fp8, round_groups, unpack_nibbles
from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import SIZES, gptq, gptq_settings, linear_layers, rewrite
from tests.quantization.reference import answers, equals_rounded_inputs, farthest
from tests.support.rank_threads import threaded_ranks


@pytest.mark.parametrize("bits", [4, 8])
def test_the_error_of_rounding_is_at_most_half_a_step(bits: int) -> None:
    torch.manual_seed(bits)
    weights = torch.randn(40, 256)
    codes, scales = round_groups(weights, bits, 64)
    dense = GroupedMatrix(bits, pack_nibbles(codes) if bits == 4 else codes, scales).dequantized()
    steps = scales.float().abs().repeat_interleave(64, dim=1)
    # The side that has one code less may be cut by up to a step; float16 rounds the scale itself.
    assert bool(((dense - weights).abs() <= steps * 1.01).all())
    assert ((dense - weights).abs() <= steps * 0.51).float().mean() > 0.97


def test_a_group_of_zeros_stays_zero() -> None:
    codes, scales = round_groups(torch.zeros(2, 64), 4, 64)
    assert GroupedMatrix(4, pack_nibbles(codes), scales).dequantized().count_nonzero() == 0


def test_nibbles_come_back_in_their_order() -> None:
    codes = torch.randint(0, 16, (5, 64), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_together_give_the_product_of_the_dense_matrix(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    codes, scales = round_groups(torch.randn(700, 512), 4, 64)  # more than one tile
    matrix = GroupedMatrix(4, pack_nibbles(codes), scales)
    x = torch.randn(rows, 512).to(dtype)
    exact = x.double() @ matrix.dequantized().to(dtype).double().t()
    assert matrix.multiply(x).dtype == dtype
    assert torch.allclose(matrix.multiply(x).double(), exact, atol=1e-4 if dtype == torch.float32 else 0.3)


def dense(weight: torch.Tensor, name: str) -> torch.Tensor:
    """What an independent hand makes of one matrix."""
    if name == "fp8":
        scale = weight.abs().amax(1, keepdim=True) / 448
        return (weight / scale).to(torch.float8_e4m3fn).float() * scale
    half = 2 ** (AT_LOAD[name].bits - 1)
    result = torch.empty_like(weight)
    for row in range(len(weight)):
        for begin in range(0, weight.shape[1], 64):
            group = weight[row, begin : begin + 64]
            step = float((group[group.abs().argmax()] / -half).half())
            result[row, begin : begin + 64] = (group / step).round().clamp(-half, half - 1) * step
    return result


@pytest.mark.parametrize("name", AT_LOAD)
def test_a_plain_checkpoint_answers_as_its_rounded_weights(tmp_path: Path, name: str) -> None:
    model = save_tiny(tmp_path, **SIZES)
    for _, weight in linear_layers(model):
        weight.copy_(dense(weight, name))
    if name == "fp8":
        assert equals_rounded_inputs(model, answers(tmp_path, quantization=name))
    else:
        for tensor, stages in [(1, 1), (2, 2)]:
            assert farthest(model, answers(tmp_path, tensor, stages, quantization=name)) < 2e-4


def test_weights_stay_packed_in_memory_and_the_rest_stays_plain(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    sizes = {}
    for name in ("none", "int8", "int4"):
        with threaded_ranks(tmp_path, quantization=name) as ranks:
            weights = list(ranks.runners[0].model.weights())
            linear = [weight for weight in weights if weight.quantizes]
            sizes[name] = sum(weight.nbytes for weight in linear)
            assert all((weight.quantized is None) == (name == "none") for weight in linear)
            assert all(weight.quantized is None for weight in weights if not weight.quantizes)
    assert sizes["int8"] < 0.27 * sizes["none"]
    assert sizes["int4"] < 0.15 * sizes["none"]


@pytest.mark.parametrize(
    ("changes", "tensor", "name", "message"),
    [
        ({}, 1, "int3", "model.quantization is 'int3': set it to none, int8"),
        ({"intermediate_size": 96}, 1, "int4", r"down_proj.weight has 96 inputs, which are no whole groups of 64"),
        ({"intermediate_size": 192}, 2, "int4", r"inputs 0 to 96 of 192, but quantization groups hold 64.*\(1, 3\)"),
    ],
)
def test_what_can_not_be_rounded_is_refused_with_the_numbers(
    tmp_path: Path, changes: dict[str, Any], tensor: int, name: str, message: str
) -> None:
    save_tiny(tmp_path, **{**SIZES, **changes})
    with pytest.raises(CannotQuantize, match=message):
        threaded_ranks(tmp_path, tensor, quantization=name).__enter__()


def test_a_quantized_checkpoint_is_not_rounded_again(tmp_path: Path) -> None:
    rewrite(tmp_path, gptq(), gptq_settings(), num_hidden_layers=1)
    with pytest.raises(CannotQuantize, match=r"quantized already .gptq 4 bits, groups of 64.: set it to none"):
        threaded_ranks(tmp_path, quantization="int8").__enter__()


def test_moving_a_matrix_keeps_its_values() -> None:
    codes, scales = round_groups(torch.randn(8, 64), 8, 64)
    matrix: Quantized = GroupedMatrix(8, codes, scales)
    assert torch.equal(matrix.to(torch.device("cpu")).dequantized(), matrix.dequantized())
    values, rows = round_fp8(torch.randn(3, 16))
    assert values.shape == (3, 16)
    assert rows.shape == (3,)
