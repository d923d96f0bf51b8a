"""The tensor generator against the plain-integer one."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme import philox
from bireme_worker.sampling.noise import Generators, gumbel, noise_words

SEEDS = st.integers(0, 2**64 - 1)


def generators(seeds: list[int], positions: list[int], choices: list[int]) -> Generators:
    low, high = [seed & 0xFFFFFFFF for seed in seeds], [seed >> 32 for seed in seeds]
    return Generators(*(torch.tensor(values) for values in (low, high, positions, choices)))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(SEEDS, st.integers(0, 2**20), st.integers(0, 127)), min_size=1, max_size=3),
    st.integers(0, 50),
)
def test_words_equal_the_reference_for_any_seed_position_choice_and_shard(
    rows: list[tuple[int, int, int]], block: int
) -> None:
    seeds, positions, choices = (list(column) for column in zip(*rows, strict=True))
    start, width = 64 * block, 64
    words = torch.stack(noise_words(generators(seeds, positions, choices), start, width), dim=2).view(len(rows), width)
    for row, (seed, position, choice) in enumerate(rows):
        expected = [philox.noise_word(seed, position, token, choice) for token in range(start, start + width)]
        assert words[row].tolist() == expected


def test_the_golden_word_of_the_random123_distribution() -> None:
    # Key and counter all ones: the known answer is published with the generator.
    assert philox.philox4x32((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2)[0] == 0x408F276D


def test_gumbel_noise_equals_the_reference_to_the_last_digits_of_float32() -> None:
    seed, position = 0xDEADBEEF12345678, 41
    noise = gumbel(generators([seed], [position], [2]), 0, 8192)[0]
    expected = torch.tensor([philox.gumbel(seed, position, token, 2) for token in range(8192)], dtype=torch.float64)
    assert (noise - expected).abs().max() < 2e-6


def test_shards_draw_what_the_whole_vocabulary_draws() -> None:
    rows = generators([3, 2**63], [0, 9], [0, 1])
    whole = gumbel(rows, 0, 384)
    assert torch.equal(whole, torch.cat([gumbel(rows, start, 128) for start in (0, 128, 256)], dim=1))
