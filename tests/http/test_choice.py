"""The text of a choice is a function of its ids alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.wire.plan import Sampling
from bireme_worker.http.choice import Choice
from bireme_worker.http.generation import Generation
from bireme_worker.text.tokenizer import TextModel

END = 2
WORDS = "one 😀 two, three 👩‍🚀 STOP four 東京 five"
PLAIN = Generation(
    request_id="r", created=0, prompts=[[5]], drawn=1, kept=1, sampling=Sampling(stop_ids=(END,)), rooms=(100,), stops=(),
    priority=0, journal=False, include_usage=False, return_ids=False, revision=None, resumed={},
)  # fmt: skip


def released(text: TextModel, generation: Generation, groups: list[list[int]]) -> tuple[str, int, str]:
    choice = Choice(0, generation, text, at_start=True)
    return "".join(choice.push(group).text for group in groups), choice.count, choice.finish


@given(data=st.data())
def test_how_ids_are_grouped_changes_nothing(text: TextModel, data: st.DataObject) -> None:
    ids = [*text.encode(WORDS, add_special_tokens=False), END]
    stops = data.draw(st.sampled_from([(), ("STOP",), ("👩‍🚀",), ("e 👩", "two"), ("never",)]))
    limit = data.draw(st.integers(1, len(ids) + 2))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1))))
    generation = replace(PLAIN, stops=stops, rooms=(limit,))
    groups = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert released(text, generation, groups) == released(text, generation, [[token] for token in ids])


@pytest.mark.parametrize(
    ("stops", "limit", "expected"),
    [
        ((), 100, (WORDS, "stop")),
        (("STOP",), 100, ("one 😀 two, three 👩‍🚀 ", "stop")),
        ((" two", "one"), 100, ("", "stop")),
        ((), 1, ("one", "length")),
        (("one two",), 1, ("one", "length")),
    ],
)
def test_a_choice_ends_where_it_must(
    text: TextModel, stops: tuple[str, ...], limit: int, expected: tuple[str, str]
) -> None:
    ids = [*text.encode(WORDS, add_special_tokens=False), END]
    words, _, finish = released(text, replace(PLAIN, stops=stops, rooms=(limit,)), [ids])
    assert (words, finish) == expected


def test_the_stop_id_counts_and_has_no_text(text: TextModel) -> None:
    generation = replace(PLAIN, sampling=Sampling(stop_ids=(100,)))
    assert released(text, generation, [[5, 100, 6]]) == (text.decode([5]), 2, "stop")


def test_half_a_character_at_the_limit_becomes_a_replacement_character(text: TextModel) -> None:
    ids = text.encode("😀", add_special_tokens=False)
    assert len(ids) > 1, "the test needs a character of several tokens"
    assert released(text, replace(PLAIN, rooms=(1,)), [ids]) == ("\N{REPLACEMENT CHARACTER}", 1, "length")
