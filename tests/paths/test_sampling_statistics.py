"""Draws at fixed logits follow the distribution that was asked for: chi-square over 10,000 of them, fixed seeds."""

import math

import pytest
import torch

from bireme.wire.plan import Sampling
from tests.rank.test_sampler import VOCABULARY, draw

DRAWS = 10_000
LIKELY = 1e-4
"""The test would fail once in so many choices of seeds; these seeds are fixed."""


def expected(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities by sorting, in float64."""
    probability = (logits.double() / sampling.temperature).softmax(0)
    ranked, order = probability.sort(descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep &= torch.arange(len(ranked)) < sampling.top_k
    ranked = ranked * keep
    keep &= (ranked.cumsum(0) - ranked) < sampling.top_p * ranked.sum()
    keep &= ranked >= sampling.min_p * ranked[0]
    kept = torch.zeros_like(probability).index_copy_(0, order, ranked * keep)
    return kept / kept.sum()


@pytest.mark.parametrize(
    ("sampling", "vary"),
    [
        (Sampling(temperature=1.0), "seed"),
        (Sampling(temperature=0.6), "position"),
        (Sampling(temperature=1.0, top_k=7), "position"),
        (Sampling(temperature=1.2, top_p=0.8), "seed"),
        (Sampling(temperature=1.0, min_p=0.05), "seed"),
        (Sampling(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01), "seed"),
    ],
)
def test_ten_thousand_draws_pass_a_chi_square_test(sampling: Sampling, vary: str) -> None:
    logits = 2.0 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(11))
    probability = expected(logits, sampling)
    counts = torch.zeros(VOCABULARY)
    for start in range(0, DRAWS, 2000):
        numbers = range(start, start + 2000)
        rows = [_with_seed(sampling, number if vary == "seed" else 77) for number in numbers]
        outputs = [[0] * (number if vary == "position" else 0) for number in numbers]
        (drawn,) = draw(logits.expand(2000, -1), rows, outputs if vary == "position" else None)
        counts += torch.bincount(drawn.ids, minlength=VOCABULARY)
    assert counts[probability == 0].sum() == 0
    assert chi_square(counts, DRAWS * probability) < critical(probability)


def _with_seed(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed * 0x9E3779B97F4A7C15 % 2**64,
    )


def _pooled(probability: torch.Tensor) -> torch.Tensor:
    """Ids that are expected less than five times count as one."""
    return probability * DRAWS >= 5


def chi_square(counts: torch.Tensor, wanted: torch.Tensor) -> float:
    common = wanted >= 5
    pairs = [(float(c), float(w)) for c, w in zip(counts[common], wanted[common], strict=True)]
    rest = (float(counts[~common].sum()), float(wanted[~common].sum()))
    return sum((c - w) ** 2 / w for c, w in [*pairs, rest] if w > 0)


def critical(probability: torch.Tensor) -> float:
    """Wilson and Hilferty's approximation of the quantile 1 − ``LIKELY``."""
    free = int(_pooled(probability).sum()) - int(not ((probability > 0) & ~_pooled(probability)).any())
    normal = 3.719  # the standard normal's quantile at 1e-4
    return free * (1 - 2 / (9 * free) + normal * math.sqrt(2 / (9 * free))) ** 3
