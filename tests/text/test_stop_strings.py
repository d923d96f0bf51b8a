"""The text ends before the first stop string, and nothing of it is ever seen."""

from hypothesis import given
from hypothesis import strategies as st

from bireme_worker.text.output_text import OutputText, Released
from bireme_worker.text.stop_strings import StopStrings
from tests.text.test_detokenizer import BYTE_LEVEL_BYTES, FALLBACK_BYTES

# Few letters, so that stop strings occur, overlap and begin without being completed.
texts = st.text(alphabet="abé東", max_size=25)
stop_lists = st.lists(st.text(alphabet="abé東", min_size=1, max_size=4), max_size=3)


def stopped_by_hand(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first stop string to be complete, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            stop = max(matches, key=len)
            return text[: end - len(stop)], stop
    return text, None


def released(text: str, stops: list[str], sizes: list[int]) -> tuple[list[str], str | None]:
    watcher = StopStrings(stops)
    parts, at = [], 0
    for size in [*sizes, len(text)]:
        parts.append(watcher.push(text[at : at + size]))
        at += size
    return [*parts, watcher.flush()], watcher.matched


@given(text=texts, stops=stop_lists, sizes=st.lists(st.integers(0, 5)))
def test_t11_streaming_gives_what_the_whole_text_gives(text: str, stops: list[str], sizes: list[int]) -> None:
    parts, matched = released(text, stops, sizes)
    assert ("".join(parts), matched) == stopped_by_hand(text, stops)


@given(text=texts, stops=stop_lists)
def test_no_more_is_held_back_than_may_still_become_a_stop_string(text: str, stops: list[str]) -> None:
    watcher, seen = StopStrings(stops), ""
    for place, character in enumerate(text):
        seen += watcher.push(character)
        if watcher.matched is not None:
            break
        held = text[len(seen) : place + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_that_never_comes_is_given_back_at_the_end() -> None:
    assert released("so a<|e", ["<|end|>"], [4]) == (["so a", "", "<|e"], None)


def test_after_a_match_nothing_more_comes() -> None:
    watcher = StopStrings(["."])
    assert watcher.push("One. Two.") == "One"
    assert watcher.push(" Three") == ""
    assert watcher.flush() == ""


def test_empty_stop_strings_are_none() -> None:
    assert released("text", ["", ""], []) == (["text", ""], None)


def byte_ids(text: str) -> list[int]:
    return list(text.encode())


@given(text=texts, stops=stop_lists, at=st.integers(0, 80))
def test_t11_a_resume_that_replays_ids_goes_on_exactly_where_the_stream_broke(
    text: str, stops: list[str], at: int
) -> None:
    ids = byte_ids(text)
    undisturbed = drain(OutputText(BYTE_LEVEL_BYTES, stops), [[token] for token in ids])
    resumed = drain(OutputText(BYTE_LEVEL_BYTES, stops), [ids[:at], *([token] for token in ids[at:])])
    assert [joined(undisturbed), last(undisturbed)] == [joined(resumed), last(resumed)]
    assert sum(part.used for part in undisturbed) == sum(part.used for part in resumed)
    assert joined(undisturbed) == stopped_by_hand(text, stops)[0]


def drain(output: OutputText, groups: list[list[int]]) -> list[Released]:
    return [*(output.push(group) for group in groups), output.finish()]


def joined(parts: list[Released]) -> str:
    return "".join(part.text for part in parts)


def last(parts: list[Released]) -> str | None:
    return parts[-1].stopped_by


def test_the_token_that_completes_a_stop_string_is_the_last_one_used() -> None:
    output = OutputText(BYTE_LEVEL_BYTES, ["b東"])
    result = output.push(byte_ids("aab東cc"))
    assert result == Released("aa", 6, "b東")
    assert output.push(byte_ids("more")) == Released("", 0, "b東")


def test_an_unfinished_character_at_the_end_is_released_broken_behind_what_was_held() -> None:
    output = OutputText(BYTE_LEVEL_BYTES, ["xyz"])
    assert output.push([*byte_ids("axy"), 0xE6]).text == "a"
    assert output.finish() == Released("xy\ufffd", 0, None)


def test_a_stop_string_over_byte_fallback_tokens_is_found() -> None:
    output = OutputText(FALLBACK_BYTES, ["東京"])
    ids = [1 + byte for byte in "a東京".encode()]
    assert joined([output.push([token]) for token in ids]) == "a"


def test_the_work_per_token_does_not_grow_with_the_text() -> None:
    output = OutputText(BYTE_LEVEL_BYTES, ["never this"])
    for _ in range(2000):
        output.push(byte_ids("ne"))
    # What is kept between tokens is bounded by the stop string, so later tokens cost what early ones do.
    assert len(output._stops._held) < len("never this")


def test_token_bytes_are_shared_by_all_outputs() -> None:
    first, second = OutputText(BYTE_LEVEL_BYTES), OutputText(BYTE_LEVEL_BYTES)
    euro = byte_ids("€")
    assert first.push(euro[:1]).text == second.push(euro[:2]).text == ""
    assert first.push(euro[1:]).text == second.push(euro[2:]).text == "€"
