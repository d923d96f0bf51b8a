"""Products with packed matrices and the 8-bit cache: in Triton's interpreter, or compiled where there is a GPU.

The reference is the first form of each matrix, expanded, in float64; shapes, groups and row counts are drawn.
"""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bireme_worker.kernels import attention, fp8, integers, layer
from bireme_worker.models.kv_cache import FORMATS
from bireme_worker.models.layers.attention import PLAIN, Rule
from bireme_worker.models.layers.rotary import frequencies
from bireme_worker.quant.gpu import GpuFp8Matrix, TiledMatrix, laid_out
from bireme_worker.quant.matrix import Fp8Matrix, GroupedMatrix, StackedMatrix, round_inputs
from bireme_worker.quant.rounding import pack_nibbles, round_fp8
from tests.kernels.references import PAGE, Paged, relative

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]
LIMIT = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
FEW = settings(
    max_examples=20 if CUDA else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
SCALE = 16 if CUDA else 1


def grouped(
    bits: int, outputs: int, groups: int, group: int, *, zeros: bool, order: str = "", seed: int = 0
) -> GroupedMatrix:
    """Random codes; ``order``: inputs name their groups in any order ("whole"), or are a part of a matrix's ("part")."""
    draw = torch.Generator().manual_seed(seed)
    inputs = groups * group
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=draw).to(torch.uint8)
    group_of = None
    if order:
        named = torch.arange(groups).repeat_interleave(group)
        group_of = named[torch.randperm(inputs, generator=draw)]
    if order == "part":
        group_of = torch.randint(0, groups, (inputs,), generator=draw)
    found = torch.randint(0, 1 << bits, (outputs, groups), generator=draw).to(torch.uint8) if zeros else None
    scales = (torch.rand((outputs, groups), generator=draw) + 0.1).half()
    return GroupedMatrix(bits, pack_nibbles(codes) if bits == 4 else codes, scales, found, group_of)


def rows_of(count: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn((count, inputs), generator=torch.Generator().manual_seed(count)).to(DEVICE, dtype)


def product(x: torch.Tensor, matrix: GroupedMatrix) -> torch.Tensor:
    return x.double().cpu() @ matrix.dequantized().double().t()


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    bits=st.sampled_from([8, 4]),
    shape=st.tuples(st.integers(1, 90), st.integers(1, 5), st.sampled_from([32, 64, 96, 128])),
    zeros=st.booleans(),
    rows=st.sampled_from([1, 2, 16, 17]),
)
@example(bits=4, shape=(70, 3, 64), zeros=False, rows=3)
@example(bits=8, shape=(70, 7, 16), zeros=True, rows=1)
@FEW
def test_packed_integers_multiply_as_what_they_stand_for(
    bits: int, shape: tuple[int, int, int], zeros: bool, rows: int, dtype: torch.dtype
) -> None:
    outputs, groups, group = shape[0] * SCALE, shape[1] * SCALE, shape[2]
    matrix = grouped(bits, outputs, groups, group, zeros=zeros, seed=outputs)
    packed = laid_out(matrix.to(DEVICE))
    assert torch.equal(packed.dequantized().cpu(), matrix.dequantized())
    x = rows_of(rows, groups * group, dtype)
    assert relative(packed.multiply(x).cpu(), product(x, matrix)) < LIMIT[dtype]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("order", ["whole", "part"])
@pytest.mark.parametrize("zeros", [False, True])
def test_inputs_that_name_their_groups_are_permuted(bits: int, order: str, zeros: bool) -> None:
    matrix = grouped(bits, 40, 3, 64, zeros=zeros, order=order)
    packed = laid_out(matrix.to(DEVICE))
    assert isinstance(packed, TiledMatrix)
    assert relative(packed.dequantized().cpu(), matrix.dequantized()) < 1e-6
    x = rows_of(2, 192)
    assert relative(packed.multiply(x).cpu(), product(x, matrix)) < LIMIT[torch.float32]


def test_the_layout_of_a_part_does_not_depend_on_which_inputs_it_has() -> None:
    shapes = [
        [tensor.shape for tensor in laid_out(grouped(4, 8, 4, 32, zeros=True, order="part", seed=seed)).tensors()]
        for seed in range(3)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("most", [16, 64])
def test_a_sum_that_several_programs_share_is_whole(bits: int, splits: int, most: int) -> None:
    matrix = grouped(bits, 150, 8, 64, zeros=True)
    packed = laid_out(matrix.to(DEVICE))
    assert isinstance(packed, TiledMatrix)
    x = rows_of(70, 512)
    form = integers.Packed(bits, packed.codes, packed.scales, packed.zeros, packed.span)
    for _ in range(2):  # the counters are as they were
        found = integers.tile(x, form, integers.Tiling(64, most, splits, 4, 3))
        assert relative(found.cpu(), product(x, matrix)) < LIMIT[torch.float32]


@pytest.mark.parametrize("bits", [8, 4])
def test_many_rows_multiply_by_the_expanded_matrix(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme_worker.quant.gpu.TILE_ROWS", 4)
    monkeypatch.setattr("bireme_worker.quant.gpu.EXPANDED", 192 * 7)
    matrix = grouped(bits, 40, 3, 64, zeros=True)
    x = rows_of(9, 192)
    assert relative(laid_out(matrix.to(DEVICE)).multiply(x).cpu(), product(x, matrix)) < LIMIT[torch.float32]


def test_matrices_with_the_same_inputs_become_one_and_keep_their_own_scales() -> None:
    parts = tuple(grouped(4, outputs, 2, 64, zeros=True, seed=outputs) for outputs in (9, 5))
    joined = laid_out(StackedMatrix(parts).to(DEVICE))
    assert isinstance(joined, TiledMatrix)
    assert torch.equal(joined.dequantized().cpu(), torch.cat([part.dequantized() for part in parts]))
    permuted = laid_out(StackedMatrix((parts[0], grouped(4, 5, 2, 64, zeros=True, order="whole"))))
    assert isinstance(permuted, StackedMatrix)


def test_groups_that_no_kernel_takes_are_left_as_they_are() -> None:
    matrix = grouped(8, 5, 3, 24, zeros=True)
    assert laid_out(matrix) is matrix


@pytest.mark.parametrize("static", [False, True])
def test_rows_are_rounded_to_fp8_as_on_the_cpu(static: bool) -> None:
    x = rows_of(7, 300) * 3
    given_scale = torch.tensor([0.01], device=DEVICE) if static else None
    rounded, scales = fp8.round_rows(x, given_scale)
    expected = round_inputs(x, given_scale)
    assert relative(rounded.float() * scales, expected) < (1e-3 if CUDA else 1e-7)  # a tie may fall to either side


@pytest.mark.parametrize("dtype", DTYPES)
@given(outputs=st.integers(1, 90), inputs=st.integers(8, 300), rows=st.sampled_from([1, 3, 17]), static=st.booleans())
@FEW
def test_fp8_multiplies_fp8(outputs: int, inputs: int, rows: int, static: bool, dtype: torch.dtype) -> None:
    inputs, outputs = inputs * SCALE, outputs * SCALE
    values, scales = round_fp8(torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(inputs)))
    given_scale = torch.tensor([0.01]) if static else None
    matrix = Fp8Matrix(values, scales, given_scale)
    packed = laid_out(matrix.to(DEVICE))
    assert isinstance(packed, GpuFp8Matrix)
    x = rows_of(rows, inputs, dtype)
    expected = round_inputs(x.float().cpu(), given_scale).double() @ matrix.dequantized().double().t()
    if CUDA:
        found = packed.multiply(x)
    else:
        ours, scale = fp8.round_rows(x, given_scale)
        product_of = fp8.line if rows == 1 else fp8.tile
        found = product_of(ours, scale, packed.values, packed.scales, dtype)
    assert relative(found.cpu(), expected) < (1e-2 if CUDA else 2e-5)  # hardware sums fp8 in fewer bits


@pytest.mark.parametrize("inputs", [4096, 8192, 12_288, 14_336, 20_480])
def test_a_row_of_fp8_is_right_whatever_way_its_matrix_is_read(inputs: int) -> None:
    """Whole outputs, two at a time or one, and by parts."""
    values, scales = round_fp8(torch.randn((5, inputs), generator=torch.Generator().manual_seed(inputs)))
    x = rows_of(1, inputs, torch.float32)
    ours, scale = fp8.round_rows(x, None)
    found = fp8.line(ours, scale, values.to(DEVICE), scales.to(DEVICE), x.dtype)
    expected = round_inputs(x.cpu(), None).double() @ Fp8Matrix(values, scales, None).dequantized().double().t()
    assert relative(found.cpu(), expected) < 2e-5


@pytest.mark.skipif(not CUDA, reason="torch's scaled product needs a GPU")
@pytest.mark.parametrize("static", [False, True])
def test_many_rows_of_fp8_multiply_by_the_hardware(static: bool) -> None:
    values, scales = round_fp8(torch.randn(1024, 2048))
    given_scale = torch.tensor([0.01]) if static else None
    matrix = Fp8Matrix(values, scales, given_scale)
    x = rows_of(300, 2048, torch.bfloat16)
    expected = round_inputs(x.float().cpu(), given_scale).double() @ matrix.dequantized().double().t()
    assert relative(laid_out(matrix.to(DEVICE)).multiply(x).cpu(), expected) < 1e-2


def packed_pages(name: str, paged: Paged) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache of ``paged`` in 8 bits; what it then stands for takes its place there."""
    kind, largest = FORMATS[name]
    wide = paged.cache.float()
    scales = wide.abs().amax(-1) / largest
    scaled = (wide / scales.unsqueeze(-1)).nan_to_num()
    data = (scaled.round() if name == "int8" else scaled).to(kind)
    paged.cache = torch.where(wide.isnan(), wide, data.float() * scales.unsqueeze(-1))
    return data, scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rule", [PLAIN, Rule(window=33, cap=2.0)], ids=str)
def test_decode_reads_a_cache_of_8_bits(name: str, rule: Rule, dtype: torch.dtype) -> None:
    size, lengths = (128, [500, 17, 1, 4000]) if CUDA else (16, [40, 17, 1])
    paged = Paged.random([1] * len(lengths), lengths, (4, 2), size, dtype=dtype, device=str(DEVICE))
    data, scales = packed_pages(name, paged)
    out = torch.full_like(paged.queries, float("nan"))
    pages = attention.Pages(paged.table, paged.slots, torch.tensor(lengths, device=DEVICE))
    attention.decode(paged.queries, data, pages, out, rule, scales)
    assert relative(out, paged.expected(rule)) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_prefill_reads_a_cache_of_8_bits(name: str, dtype: torch.dtype) -> None:
    size, length, count = (128, 900, 200) if CUDA else (16, 40, 20)
    paged = Paged.random([count], [length], (4, 2), size, dtype=dtype, device=str(DEVICE))
    data, scales = packed_pages(name, paged)
    step = attention.tile_tokens(4, 2, dtype)
    tiles = [[0, at, length - count + at, min(step, count - at)] for at in range(0, count, step)]
    out = torch.full_like(paged.queries, float("nan"))
    pages = attention.Pages(paged.table, paged.slots, torch.tensor([length], device=DEVICE))
    attention.prefill(paged.queries, data, pages, torch.tensor(tiles, device=DEVICE), out, PLAIN, scales)
    assert relative(out, paged.expected()) < LIMIT[dtype]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [16, 24])
def test_keys_and_values_are_rounded_as_the_cpu_rounds_them(name: str, size: int) -> None:
    tokens, query_heads, kv_heads = 11, 3, 2
    kind, largest = FORMATS[name]
    qkv = rows_of(tokens, (query_heads + 2 * kv_heads) * size).view(tokens, -1, size)
    positions, frequency = torch.arange(tokens, device=DEVICE) * 37, frequencies(size, 10_000.0, None).to(DEVICE)
    turns = positions.float().unsqueeze(1) * frequency
    places = torch.randperm(4 * PAGE, generator=torch.Generator().manual_seed(1))[:tokens].to(DEVICE)
    data = torch.zeros((4, 2, PAGE, kv_heads, size), dtype=torch.uint8, device=DEVICE).view(kind)
    scales = torch.full((4, 2, PAGE, kv_heads), float("nan"), device=DEVICE)
    plain = torch.zeros((4, 2, PAGE, kv_heads, size), device=DEVICE)
    rotation = (turns.cos(), turns.sin())
    queries = layer.rotate_store(qkv, rotation, places, data, scales)
    assert torch.equal(queries, layer.rotate_store(qkv, rotation, places, plain))
    written = plain.transpose(0, 1).flatten(1, 2)[:, places]
    expected_scales = written.abs().amax(-1) / largest
    scaled = written / expected_scales.unsqueeze(-1)
    expected = (scaled.round() if name == "int8" else scaled.to(kind).float()) * expected_scales.unsqueeze(-1)
    found_scales = scales.transpose(0, 1).flatten(1, 2)[:, places]
    found = data.float().transpose(0, 1).flatten(1, 2)[:, places] * found_scales.unsqueeze(-1)
    assert relative(found_scales, expected_scales) < 1e-6
    assert relative(found, expected) < 1e-6
    assert int(scales.isfinite().sum()) == 2 * tokens * kv_heads, "some other place was written"


@pytest.mark.parametrize(("outputs", "wanted"), [(28672, 224), (8192, 128), (5120, 120)])
def test_large_tiles_have_one_program_on_each_multiprocessor(outputs: int, wanted: int) -> None:
    how = integers.tiling_of(64, outputs, 64, (64, 128))
    assert (how.outputs, outputs // how.outputs * how.splits) == (128, wanted)


def test_small_tiles_share_a_multiprocessor_and_a_smaller_gpu_gets_fewer() -> None:
    room = integers.Room(58, 99 << 10)
    assert [integers.tiling_of(16, 5120, 64, (64, 128), on).splits for on in (integers.Room(), room)] == [4, 2]


@pytest.mark.parametrize(("shared", "stages"), [(227, 4), (99, 3), (64, 2)])
def test_stages_fit_the_memory_of_a_multiprocessor(shared: int, stages: int) -> None:
    how = integers.tiling_of(128, 8192, 32, (128, 128), integers.Room(132, shared << 10), deep=True)
    assert how.stages == stages
