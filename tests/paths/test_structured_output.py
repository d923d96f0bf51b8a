"""Answers bound to a form, on every layout and every way to compute them: the same ids, and each the best allowed one.

Masks reach the ranks with the plans. So a bound request must come out alike when its vocabulary is split, when it is
preempted, when a new epoch computes it anew, and when another group goes on with it; neighbours that are free and draft
ahead must not notice.
"""

import re
from collections.abc import Iterator
from pathlib import Path as Folder
from typing import Any

import pytest
import torch

from bireme.wire.plan import Sampling
from bireme_worker.text.grammar import Grammars, json_grammar, regex_grammar
from tests.checkpoints.tiny import save_tiny
from tests.support.oracle import TOLERANCE, Oracle, score
from tests.support.paths import Asked, Engine, Path
from tests.support.rank_threads import ThreadedRanks, threaded_ranks
from tests.text.test_detokenizer import byte_level

TOKENIZER = byte_level()
(END,) = TOKENIZER.encode("<|end|>").ids
VOCABULARY = 283
"""Odd, and more than the tokenizer knows: shards are padded, and some ids have no text."""
GRAMMARS = Grammars(TOKENIZER, VOCABULARY, {END})
PLACES = [(1, 1), (2, 1), (1, 2), (2, 2)]
DRAFTS = 4
PATTERN = "(ab|ba|[0-9]{2}){4,9}"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 999, "minimum": 0}, "k": {"enum": ["é", "東"]}},
    "required": ["n", "k"],
    "additionalProperties": False,
}
DISTURBED: dict[str, dict[str, Any]] = {
    "undisturbed": {"path": Path(speculation=DRAFTS)},
    "in a small pool": {"path": Path(speculation=DRAFTS, blocks=12, budget=33, prefix_caching=True)},
    "preempted": {"path": Path(speculation=DRAFTS, prefix_caching=True), "preempt_at": frozenset({2, 5, 6, 11})},
    "through new epochs": {"path": Path(speculation=DRAFTS, stages=2, depth=3), "lose_at": frozenset({3, 4, 13})},
}


class Ground:
    """One model on every layout."""

    def __init__(self, folder: Folder) -> None:
        torch.set_num_threads(1)
        self.model: Any = save_tiny(folder, vocab_size=VOCABULARY, initializer_range=0.3)
        self.ranks: dict[tuple[int, int], ThreadedRanks] = {}
        self.alone: list[Asked] = []
        """Each request computed by itself on one rank, without drafts."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("bound")
    made = Ground(folder)
    options: dict[str, Any] = {"kv_bytes": 4 << 20, "speculation": DRAFTS}
    with (
        threaded_ranks(folder, 1, 1, **options) as one,
        threaded_ranks(folder, 2, 1, **options) as shards,
        threaded_ranks(folder, 1, 2, **options) as stages,
        threaded_ranks(folder, 2, 2, **options) as both,
    ):
        made.ranks = dict(zip(PLACES, (one, shards, stages, both), strict=True))
        made.alone = asked()
        for lone in made.alone:
            Engine(one, Path()).run([lone])
        yield made


def asked() -> list[Asked]:
    """Bound requests, and free ones that repeat themselves, so that drafts are right now and then."""
    circle = [5, 6, 7] * 8
    hot = Sampling(temperature=0.9, seed=7, stop_ids=(END,))
    return [
        Asked([40, 41], Sampling(stop_ids=(END,)), 30, grammar=GRAMMARS.compile(regex_grammar(PATTERN))),
        Asked(circle, Sampling(temperature=0.0, logit_bias={6: 30.0}), 30),
        Asked([1, 2, 3], hot, 40, grammar=GRAMMARS.compile(json_grammar(SCHEMA))),
        Asked(
            list(range(60)),
            Sampling(temperature=1.2, top_p=0.9, seed=3, repetition_penalty=1.2, min_tokens=12, stop_ids=(END,)),
            24,
            grammar=GRAMMARS.compile(regex_grammar("[a-e]{1,16}")),
        ),
        Asked(circle, Sampling(temperature=0.7, seed=2), 20),
    ]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("way", DISTURBED)
def test_a_bound_answer_is_the_same_on_every_layout_and_every_path(
    ground: Ground, place: tuple[int, int], way: str
) -> None:
    found = asked()
    options = dict(DISTURBED[way])
    engine = Engine(ground.ranks[place], options.pop("path"), way.encode())
    engine.run(found, **options)
    for one, lone in zip(found, ground.alone, strict=True):
        assert (one.outputs, one.finish) == (lone.outputs, lone.finish)
    assert re.fullmatch(PATTERN, text_of(found[0]))
    assert 12 <= len(text_of(found[3])) <= 16
    judge(ground.model, found)
    if way != "undisturbed":
        assert engine.scheduler.space.pool.used == 0


@pytest.mark.parametrize("place", PLACES[1:3], ids=str)
def test_a_bound_answer_is_continued_from_any_of_its_ids(ground: Ground, place: tuple[int, int]) -> None:
    whole = ground.alone[2]
    resumed = [whole.resumed(kept) for kept in range(len(whole.outputs))]
    Engine(ground.ranks[place], Path(speculation=DRAFTS, prefix_caching=True)).run(resumed)
    assert [one.outputs for one in resumed] == [whole.outputs] * len(resumed)
    assert {one.finish for one in resumed} == {whole.finish}


def text_of(one: Asked) -> str:
    return TOKENIZER.decode([token for token in one.outputs if token != END])


def judge(model: Any, requests: list[Asked]) -> None:
    """Free ones by the oracle; bound ones by its score of what their form allows."""
    oracle = Oracle(model)
    for one in requests:
        if one.grammar is None:
            oracle.judge(one.prompt, one.outputs, one.sampling)
            continue
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*one.prompt, *one.outputs]])).logits[0, len(one.prompt) - 1 : -1]
        for position, got in enumerate(one.outputs):
            before = one.outputs[:position]
            scores = score(allowed(one, before, logits[position]), one.sampling, one.prompt, before)
            assert scores[got] >= scores.max() - TOLERANCE
    oracle.verdict.check()


def allowed(one: Asked, before: list[int], logits: torch.Tensor) -> torch.Tensor:
    mask = one.resumed(len(before)).bind()
    bits = torch.tensor([mask[token >> 3] >> (token & 7) & 1 for token in range(VOCABULARY)], dtype=torch.bool)
    return logits.masked_fill(~bits, -torch.inf)
