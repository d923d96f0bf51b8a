"""The judge is judged: it passes the reference's own text and catches one changed id, one wrong seed, one skipped id."""

from types import SimpleNamespace

import pytest
import torch

from bireme.philox import gumbel
from bireme.wire.plan import Sampling
from tests.support.oracle import Oracle, noise, score

VOCABULARY = 64


def _reference(input_ids: torch.Tensor) -> SimpleNamespace:
    """Logits that depend on the last two ids: enough that skipping or changing an id shows."""
    ids = input_ids[0]
    previous = torch.cat([torch.zeros(1, dtype=ids.dtype), ids[:-1]])
    rows = [
        torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(int(a) * 1000 + int(b))) * 2
        for a, b in zip(previous, ids, strict=True)
    ]
    return SimpleNamespace(logits=torch.stack(rows)[None])


def _continuation(prompt: list[int], sampling: Sampling, length: int = 40) -> list[int]:
    outputs: list[int] = []
    for _ in range(length):
        logits = _reference(torch.tensor([[*prompt, *outputs]])).logits[0, -1]
        outputs.append(int(score(logits, sampling, prompt, outputs).argmax()))
    return outputs


CASES = [
    Sampling(),
    Sampling(temperature=0.8, seed=2**60 + 5),
    Sampling(temperature=1.3, seed=4, top_k=8, top_p=0.9, min_p=0.02, choice=1),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, logit_bias={3: 2.0}),
    Sampling(temperature=1.0, seed=9, min_tokens=20, stop_ids=(1, 2, 3)),
]


@pytest.mark.parametrize("sampling", CASES)
def test_the_references_own_text_passes(sampling: Sampling) -> None:
    oracle = Oracle(_reference)
    oracle.judge([5, 6, 7], _continuation([5, 6, 7], sampling), sampling)
    oracle.verdict.check()
    assert oracle.verdict.tokens == 40


@pytest.mark.parametrize("sampling", CASES)
def test_one_changed_id_is_caught(sampling: Sampling) -> None:
    outputs = _continuation([5, 6, 7], sampling)
    outputs[20] = (outputs[20] + 1) % VOCABULARY
    oracle = Oracle(_reference)
    oracle.judge([5, 6, 7], outputs, sampling)
    with pytest.raises(AssertionError, match="ids are wrong"):
        oracle.verdict.check()


def test_a_skipped_id_another_seed_and_another_choice_are_caught() -> None:
    sampling = Sampling(temperature=0.8, seed=5)
    outputs = _continuation([5, 6, 7], sampling)
    changed = [
        (outputs[:20] + outputs[21:], sampling),
        (outputs, Sampling(temperature=0.8, seed=6)),
        (outputs, Sampling(temperature=0.8, seed=5, choice=1)),
    ]
    for ids, how in changed:
        oracle = Oracle(_reference)
        oracle.judge([5, 6, 7], ids, how)
        with pytest.raises(AssertionError):
            oracle.verdict.check()


def test_a_forbidden_stop_id_is_caught() -> None:
    sampling = Sampling(temperature=1.0, seed=9, min_tokens=20, stop_ids=(1, 2, 3))
    outputs = _continuation([5, 6, 7], sampling)
    assert not {1, 2, 3} & set(outputs[:20])
    outputs[4] = 2
    oracle = Oracle(_reference)
    oracle.judge([5, 6, 7], outputs, sampling)
    with pytest.raises(AssertionError):
        oracle.verdict.check()


def test_the_oracles_noise_is_the_protocols_noise() -> None:
    drawn = noise(2**63 + 12345, 17, 50, 2)
    assert drawn.tolist() == pytest.approx([gumbel(2**63 + 12345, 17, token, 2) for token in range(50)], abs=1e-5)
