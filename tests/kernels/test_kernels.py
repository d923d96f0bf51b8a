"""Every kernel against plain arithmetic: in Triton's interpreter where there is no GPU, compiled where there is one."""

import pytest
import torch

from bireme.philox import gumbel
from bireme.wire.plan import Admit, Sampling
from bireme_worker.kernels import attention, draw, gemv, layer
from bireme_worker.models.layers.attention import PLAIN, Rule
from bireme_worker.models.layers.rotary import angles, frequencies, rotate
from bireme_worker.models.shard import VocabularyShard
from bireme_worker.sampling.state import SamplingState
from tests.kernels.references import PAGE, Paged, relative

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
HEADS = [(32, 8), (16, 8), (9, 3), (4, 4)] if CUDA else [(4, 2), (3, 1)]
SIZES = [128, 64] if CUDA else [16]
LENGTHS = [[1, 500, 17, 4000, 16, 33] * 8, [4000], [1] * 300] if CUDA else [[1, 40, 17], [90]]


def pages_of(paged: Paged) -> attention.Pages:
    lengths = torch.tensor(paged.lengths, device=DEVICE)
    return attention.Pages(paged.table, paged.slots, lengths)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_decode_attends_to_every_written_position_and_to_no_other(
    lengths: list[int], size: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    paged = Paged.random([1] * len(lengths), lengths, heads, size, dtype=dtype, device=DEVICE)
    out = torch.full_like(paged.queries, float("nan"))
    attention.decode(paged.queries, paged.cache, pages_of(paged), out)
    assert relative(out, paged.expected()) < LIMIT[dtype]


RULES = [Rule(window=20), Rule(cap=0.5, scale=0.4), Rule(window=33, cap=2.0)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_decode_keeps_to_the_window_and_the_cap(lengths: list[int], rule: Rule, dtype: torch.dtype) -> None:
    paged = Paged.random([1] * len(lengths), lengths, HEADS[0], SIZES[-1], dtype=dtype, device=DEVICE)
    out = torch.full_like(paged.queries, float("nan"))
    attention.decode(paged.queries, paged.cache, pages_of(paged), out, rule)
    assert relative(out, paged.expected(rule)) < LIMIT[dtype]


CHUNKS = [([100, 5, 1000], [100, 900, 1300]), ([2], [4000])] if CUDA else [([5, 20, 2], [5, 33, 40]), ([40], [40])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_prefill_sees_the_cached_prefix_and_nothing_after_each_token(
    chunks: tuple[list[int], list[int]], size: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    counts, lengths = chunks
    paged = Paged.random(counts, lengths, heads, size, dtype=dtype, device=DEVICE)
    assert relative(prefilled(paged, heads, dtype), paged.expected()) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_prefill_keeps_to_the_window_and_the_cap(
    chunks: tuple[list[int], list[int]], rule: Rule, dtype: torch.dtype
) -> None:
    paged = Paged.random(*chunks, HEADS[0], SIZES[-1], dtype=dtype, device=DEVICE)
    assert relative(prefilled(paged, HEADS[0], dtype, rule), paged.expected(rule)) < LIMIT[dtype]


def prefilled(paged: Paged, heads: tuple[int, int], dtype: torch.dtype, rule: Rule = PLAIN) -> torch.Tensor:
    step = attention.tile_tokens(*heads, dtype)
    tiles: list[list[int]] = []
    begin = 0
    for row, (count, length) in enumerate(zip(paged.counts, paged.lengths, strict=True)):
        starts = range(0, count, step)
        tiles += [[row, begin + at, length - count + at, min(step, count - at)] for at in starts]
        begin += count
    out = torch.full_like(paged.queries, float("nan"))
    attention.prefill(paged.queries, paged.cache, pages_of(paged), torch.tensor(tiles, device=DEVICE), out, rule)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize("from_one", [False, True])
def test_the_norm_adds_the_residual_in_place_first(from_one: bool, with_delta: bool, dtype: torch.dtype) -> None:
    size = 4096 if CUDA else 48
    x, delta = (torch.randn((7, size)).to(DEVICE, dtype) for _ in range(2))
    weight = torch.randn(size).to(DEVICE, dtype)
    total = x + delta if with_delta else x.clone()
    wide = total.double()
    expected = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-5) * (weight.double() + from_one)
    out = layer.add_norm(x, delta if with_delta else None, weight, 1e-5, from_one=from_one)
    assert torch.equal(x, total)
    assert relative(out, expected) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_opens_by_silu(dtype: torch.dtype) -> None:
    width = 14336 if CUDA else 1100
    gate_up = torch.randn((5, 2 * width)).to(DEVICE, dtype)
    gate, up = gate_up.double().chunk(2, 1)
    assert relative(layer.silu_mul(gate_up), torch.nn.functional.silu(gate) * up) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("size", SIZES)
def test_rotated_queries_come_back_and_keys_and_values_go_to_their_slots(
    size: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    query_heads, kv_heads = heads
    tokens = 11
    qkv = torch.randn((tokens, query_heads + 2 * kv_heads, size)).to(DEVICE, dtype)
    positions = torch.arange(tokens, device=DEVICE) * 37
    frequency = frequencies(size, 10_000.0, None).to(DEVICE)
    turns = positions.float().unsqueeze(1) * frequency
    places = torch.randperm(4 * PAGE)[:tokens].to(DEVICE)
    cache = torch.zeros((4, 2, PAGE, kv_heads, size), dtype=dtype, device=DEVICE)
    queries = layer.rotate_store(qkv, (turns.cos(), turns.sin()), places, cache)
    expected = rotate(qkv.float().clone(), *angles(positions, frequency, torch.float32))
    assert relative(queries, expected[:, :query_heads]) < LIMIT[dtype]
    keys, values = cache.transpose(0, 1).flatten(1, 2)[:, places]
    assert relative(keys, expected[:, query_heads : query_heads + kv_heads]) < LIMIT[dtype]
    assert torch.equal(values, qkv[:, query_heads + kv_heads :])
    assert int((cache != 0).any(4).any(3).sum()) == 2 * tokens, "some other place was written"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (1000, 1104)] if CUDA else [(9, 48), (5, 2100)])
def test_one_row_times_a_matrix(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape).to(DEVICE, dtype)
    x = torch.randn((1, shape[1])).to(DEVICE, dtype)
    assert relative(gemv.gemv(x, matrix), x.double() @ matrix.double().T) < LIMIT[dtype]


VOCABULARY = 128_256 if CUDA else 4_990
SHARD = VocabularyShard(0, VOCABULARY, -(-VOCABULARY // 64) * 64)


def drawn_of(logits: torch.Tensor, samplings: list[Sampling], outputs: list[int]) -> tuple[list[int], list[bool]]:
    state = SamplingState(len(samplings) + 1, SHARD, torch.device(DEVICE))
    for slot, sampling in enumerate(samplings, 1):
        state.admit(Admit(slot, sampling))
    slots = torch.arange(1, len(samplings) + 1, device=DEVICE)
    _, ids, bad = draw.draw(logits, slots, torch.tensor(outputs, device=DEVICE), state)
    return ids.tolist(), bad.tolist()


def random_logits(rows: int) -> torch.Tensor:
    logits = torch.randn((rows, SHARD.width), generator=torch.Generator().manual_seed(3)) * 2
    logits[:, VOCABULARY:] = -torch.inf
    return logits.to(DEVICE)


def test_a_greedy_row_takes_the_highest_logit_and_the_lower_id_of_equals() -> None:
    logits = random_logits(3)
    logits[1, [4097, 901, 902]] = 50.0
    ids, bad = drawn_of(logits, [Sampling()] * 3, [0, 1, 2])
    assert ids == [int(logits[0].argmax()), 901, int(logits[2].argmax())]
    assert bad == [False] * 3


def test_a_hot_row_adds_the_noise_of_its_seed_output_and_choice() -> None:
    logits = random_logits(2)
    hot = [Sampling(temperature=0.7, seed=(5 << 40) + 77, choice=2), Sampling(temperature=1.3, seed=9)]
    ids, _ = drawn_of(logits, hot, [12, 700])
    for row, (sampling, output) in enumerate(zip(hot, (12, 700), strict=True)):
        noise = [gumbel(sampling.seed, output, token, sampling.choice) for token in range(VOCABULARY)]
        scores = logits[row, :VOCABULARY].cpu().double() / sampling.temperature + torch.tensor(noise).double()
        assert ids[row] == int(scores.argmax())


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_logit_that_is_not_finite_is_reported_and_names_an_id_that_exists(fault: float) -> None:
    logits = random_logits(3)
    logits[0, VOCABULARY - 1] = fault
    logits[1] = float("nan")
    ids, bad = drawn_of(logits, [Sampling(), Sampling(temperature=1.0), Sampling()], [0, 0, 0])
    assert bad == [True, True, False]
    assert all(0 <= token < VOCABULARY for token in ids)
