"""The noise is part of the protocol: every part, device and version must draw the same words."""

import math
from collections import Counter

import pytest

from bireme.philox import gumbel, noise_word, philox4x32

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_known_answers_of_the_paper_come_out(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_token_position_choice_and_both_halves_of_the_seed_change_the_word() -> None:
    base = (2**40 + 7, 3, 9, 0)
    others = [
        (2**40 + 8, 3, 9, 0),
        (2**41 + 7, 3, 9, 0),
        (2**40 + 7, 4, 9, 0),
        (2**40 + 7, 3, 10, 0),
        (2**40 + 7, 3, 9, 1),
    ]
    words = {noise_word(*case) for case in [base, *others]}
    assert len(words) == 6


def test_golden_words_and_noise() -> None:
    assert [noise_word(42, 0, token) for token in range(4)] == list(philox4x32((0, 0, 0, 0), (42, 0)))
    assert [hex(noise_word(2**63 + 1, 17, token, 2)) for token in (0, 5, 49151)] == GOLDEN_WORDS
    assert [round(gumbel(2**63 + 1, 17, token, 2), 6) for token in (0, 5, 49151)] == GOLDEN_GUMBEL


def test_the_noise_is_standard_gumbel() -> None:
    draws = [gumbel(1, position, token) for position in range(50) for token in range(400)]
    mean = sum(draws) / len(draws)
    assert abs(mean - 0.5772156649) < 0.03
    assert abs(sum((d - mean) ** 2 for d in draws) / len(draws) - math.pi**2 / 6) < 0.06


def test_argmax_of_noised_logits_draws_the_softmax_by_chi_square() -> None:
    logits = [2.0, 1.0, 0.0, -1.0]
    weights = [math.exp(value) for value in logits]
    draws = 10_000
    counts = Counter(
        max(range(4), key=lambda token: logits[token] + gumbel(99, position, token)) for position in range(draws)
    )
    expected = [draws * weight / sum(weights) for weight in weights]
    chi_square = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in range(4))
    assert chi_square < 16.27, "p = 0.001 at three degrees of freedom"


GOLDEN_WORDS = ["0xbe190993", "0xcb3a4f0d", "0xa6a7c955"]
GOLDEN_GUMBEL = [-0.305281, -0.456914, -0.051336]
