"""Streaming text: exact, never half a character, and the same however the ids are grouped."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.text.detokenizer import Detokenizer
from bireme_worker.text.token_bytes import BYTE_LEVEL, TokenBytes
from bireme_worker.text.tokenizer import TextModel

BYTE_SPELLING = {byte: character for character, byte in BYTE_LEVEL.items()}


def byte_level() -> Tokenizer:
    """All 256 bytes, whose ids are the bytes themselves, then some longer tokens and added ones."""
    words = ["".join(BYTE_SPELLING[byte] for byte in part) for part in (b" the", "é".encode(), "東京".encode()[1:4])]
    vocab = {BYTE_SPELLING[byte]: byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("ab 東")])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """The decoder of Llama 2: bytes only where the vocabulary has no piece."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", "é", "東"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


BYTE_LEVEL_TOKENIZER = byte_level()
BYTE_LEVEL_BYTES = TokenBytes(BYTE_LEVEL_TOKENIZER)
FALLBACK_TOKENIZER = byte_fallback()
FALLBACK_BYTES = TokenBytes(FALLBACK_TOKENIZER)
ids_of_byte_level = st.lists(st.integers(0, BYTE_LEVEL_TOKENIZER.get_vocab_size() - 1), max_size=40)


def streamed(tokens: TokenBytes, groups: list[list[int]], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokens, skip_special=skip)
    return [*(detokenizer.push(group) for group in groups), detokenizer.flush()]


def cut(ids: list[int], borders: list[int]) -> list[list[int]]:
    places = sorted({0, len(ids), *(border % (len(ids) + 1) for border in borders)})
    return [ids[start:stop] for start, stop in pairwise(places)]


@given(ids=ids_of_byte_level, skip=st.booleans())
def test_t12_any_ids_stream_to_exactly_what_the_tokenizer_decodes_at_once(ids: list[int], skip: bool) -> None:
    whole = BYTE_LEVEL_TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(BYTE_LEVEL_BYTES, [[token] for token in ids], skip=skip)) == whole


@given(ids=ids_of_byte_level, borders=st.lists(st.integers(0, 40)))
def test_what_is_released_is_a_function_of_the_id_prefix_not_of_its_grouping(
    ids: list[int], borders: list[int]
) -> None:
    one_by_one = streamed(BYTE_LEVEL_BYTES, [[token] for token in ids])
    seen = 0
    detokenizer, text = Detokenizer(BYTE_LEVEL_BYTES), ""
    for group in cut(ids, borders):
        text += detokenizer.push(group)
        seen += len(group)
        assert text == "".join(one_by_one[:seen])


@given(text=st.text(max_size=30))
def test_a_character_is_released_whole_with_its_last_byte(text: str) -> None:
    deltas = streamed(BYTE_LEVEL_BYTES, [[byte] for byte in text.encode()])
    assert [delta for delta in deltas if delta] == list(text)


def test_an_unfinished_character_is_held_and_shown_as_broken_only_at_the_end() -> None:
    first, *rest = "🏳".encode()
    assert streamed(BYTE_LEVEL_BYTES, [[first], rest[:1]]) == ["", "", "\ufffd"]
    assert streamed(BYTE_LEVEL_BYTES, [[first], rest]) == ["", "🏳", ""]


def test_broken_bytes_are_not_held_back_for_ever() -> None:
    assert streamed(BYTE_LEVEL_BYTES, [[0xFF]] * 3) == ["\ufffd"] * 3 + [""]


def test_special_tokens_are_silent_unless_asked_for() -> None:
    (end,) = BYTE_LEVEL_TOKENIZER.encode("<|end|>").ids
    assert streamed(BYTE_LEVEL_BYTES, [[ord("a"), end]]) == ["a", ""]
    assert streamed(BYTE_LEVEL_BYTES, [[ord("a"), end]], skip=False) == ["a<|end|>", ""]


def test_an_id_outside_the_vocabulary_is_silent() -> None:
    assert streamed(BYTE_LEVEL_BYTES, [[ord("a"), 10**6, ord("b")]]) == ["ab", ""]


@given(st.lists(st.sampled_from(["▁", "▁the", "a", "é", "東", "</s>", "🏳", "\n", "ñ"]), max_size=20))
def test_t12_byte_fallback_streams_to_what_the_tokenizer_decodes_at_once(pieces: list[str]) -> None:
    ids: list[int] = []
    for piece in pieces:
        known = FALLBACK_TOKENIZER.token_to_id(piece)
        ids += [1 + byte for byte in piece.encode()] if known is None else [known]
    assert "".join(streamed(FALLBACK_BYTES, [[token] for token in ids])) == FALLBACK_TOKENIZER.decode(ids)


def test_text_that_continues_a_prompt_keeps_its_first_space() -> None:
    the = [FALLBACK_TOKENIZER.get_vocab()["▁the"]]
    assert Detokenizer(FALLBACK_BYTES).push(the) == "the"
    assert Detokenizer(FALLBACK_BYTES, at_start=False).push(the) == " the"


@pytest.mark.parametrize("decoder", [None, decoders.CTC(), decoders.Sequence([decoders.Fuse()])])
def test_another_decoder_is_refused_by_name(decoder: decoders.Decoder | None) -> None:
    tokenizer = byte_level()
    if decoder is None:
        tokenizer = Tokenizer(models.BPE())
    else:
        tokenizer.decoder = decoder
    with pytest.raises(UnsupportedCheckpoint, match=r"decoder .* is not supported, only ByteLevel"):
        TokenBytes(tokenizer)


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> TextModel:
    return TextModel.load(smollm2_dir)


@pytest.mark.parametrize("text", ["Grüße, 東京! 🏳️‍🌈👩‍👩‍👧‍👦 — किताब", "a" * 50, "\r\n\t  x", "\u202eright\u202c"])
def test_t12_a_real_vocabulary_streams_exactly(smollm2: TextModel, text: str) -> None:
    ids = smollm2.encode(text, add_special_tokens=False)
    assert "".join(streamed(smollm2.tokens, [[token] for token in ids])) == text
