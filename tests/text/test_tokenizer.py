"""Tokenizers from a directory and from GGUF metadata: the same ids as the reference, and back to the same text."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from bireme_worker.checkpoints.errors import CheckpointError, CorruptFile, MissingFile, UnsupportedCheckpoint
from bireme_worker.checkpoints.gguf_file import GGUFFile
from bireme_worker.checkpoints.packaged import smollm2_gguf
from bireme_worker.text.errors import InvalidChat
from bireme_worker.text.gguf_tokenizer import gguf_tokenizer
from bireme_worker.text.token_bytes import BYTE_LEVEL
from bireme_worker.text.tokenizer import TextModel
from tests.checkpoints.tiny import save_tiny, tiny_llama, write_gguf

NOW = datetime(2026, 1, 2)
FROM_GGUF = TextModel.load(smollm2_gguf())
# SmolLM2's vocabulary has no tokens for a few control characters, nor for the bytes that begin the empty planes of Unicode.
encodable = st.characters(
    max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d"
)
mixed_text = st.text(encodable, max_size=40) | st.text(alphabet="aé 東0९½🏳️‍🌈\n\t'<|", max_size=40)


@given(text=mixed_text)
def test_text_comes_back_unchanged(text: str) -> None:
    ids = FROM_GGUF.encode(text, add_special_tokens=False)
    assert FROM_GGUF.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token < FROM_GGUF.vocab_size for token in ids)


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' own reading of the same GGUF file."""
    return AutoTokenizer.from_pretrained(smollm2_gguf().parent, gguf_file=smollm2_gguf().name)


@pytest.mark.parametrize(
    "text",
    [
        "Hello world",
        "  two\n\nlines\t",
        "don't we'll I'M",
        "naïve 東京 🏳️‍🌈",
        "<|im_start|>user\nx<|im_end|>",
        "\U00040000\x04",
    ],
)
def test_ids_are_those_of_transformers_reading_the_same_file(reference: Any, text: str) -> None:
    assert FROM_GGUF.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


def test_digits_are_single_tokens_as_the_pre_tokenization_smollm_demands() -> None:
    ids = FROM_GGUF.encode("12345", add_special_tokens=False)
    assert [FROM_GGUF.decode([token]) for token in ids] == list("12345")


def test_the_directory_that_was_converted_gives_the_same_text_model(smollm2_dir: Path) -> None:
    converted = TextModel.load(smollm2_dir)
    text = "It's 10:45 — 東京 <|im_end|>"
    assert converted.encode(text, add_special_tokens=True) == FROM_GGUF.encode(text, add_special_tokens=True)
    assert converted.special_tokens == FROM_GGUF.special_tokens
    assert converted.eos_ids == FROM_GGUF.eos_ids == {2}
    assert converted.vocab_size == FROM_GGUF.vocab_size == 49152
    assert converted.config == FROM_GGUF.config


def test_a_chat_becomes_the_ids_of_its_rendering() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = FROM_GGUF.encode_chat(messages, now=NOW)
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert FROM_GGUF.decode(ids, skip_special_tokens=False) == rendered
    assert ids[0] == 1
    assert FROM_GGUF.decode(ids) == rendered.replace("<|im_start|>", "").replace("<|im_end|>", "")


TOKENS = [
    *BYTE_LEVEL,  # one token per byte
    *["12", "123", "1234", "45", "hello", "Ġh"],
    *["<bos>", "<tool>"],
]
MERGES = ["1 2", "12 3", "123 4", "4 5", "Ġ h"]  # none that leads to "hello"
BOS, TOOL = TOKENS.index("<bos>"), TOKENS.index("<tool>")


def write_tokenizer(path: Path, *, pre: str, add_bos: bool | None = None, **changes: Any) -> Path:
    """A GGUF file without weights, with a vocabulary that shows how text was split."""
    words = {"model": "gpt2", "tokens": TOKENS, "merges": MERGES, "bos": BOS, **changes}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(words["model"])
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words["tokens"])
    writer.add_token_types([{"<bos>": 3, "<tool>": 4}.get(token, 1) for token in words["tokens"]])
    writer.add_token_merges(words["merges"])
    writer.add_bos_token_id(words["bos"])
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def split_by(path: Path, text: str, **words: Any) -> list[str]:
    """The tokens of ``text``, as they are spelled in the vocabulary."""
    with GGUFFile(write_tokenizer(path / "t.gguf", **words)) as file:
        tokenizer, _ = gguf_tokenizer(file)
    return tokenizer.encode(text).tokens


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("gpt-2", ["1234", "5", "Ġh", "i"]),
        ("smollm", ["1", "2", "3", "4", "5", "Ġh", "i"]),
        ("llama-bpe", ["<bos>", "123", "45", "Ġh", "i"]),
        ("llama3", ["<bos>", "123", "45", "Ġh", "i"]),
    ],
)
def test_each_pre_tokenization_splits_digits_in_its_own_way(tmp_path: Path, pre: str, tokens: list[str]) -> None:
    assert split_by(tmp_path, "12345 hi", pre=pre) == tokens


def test_llama3_takes_a_word_of_the_vocabulary_that_no_merges_lead_to(tmp_path: Path) -> None:
    assert split_by(tmp_path, "hello", pre="llama-bpe", add_bos=False) == ["hello"]
    assert split_by(tmp_path, "hello", pre="smollm") == list("hello")


def test_a_bos_token_goes_first_where_the_file_asks_for_it(tmp_path: Path) -> None:
    assert split_by(tmp_path, "a", pre="smollm") == ["a"]
    assert split_by(tmp_path, "a", pre="smollm", add_bos=True) == ["<bos>", "a"]


def test_a_user_defined_token_is_matched_whole_but_is_not_special(tmp_path: Path) -> None:
    with GGUFFile(write_tokenizer(tmp_path / "t.gguf", pre="smollm")) as file:
        tokenizer, _ = gguf_tokenizer(file)
    ids = tokenizer.encode("a<tool>b<bos>").ids
    assert [ids[1], ids[3]] == [TOOL, BOS]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<tool>b"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"pre": "mystery"}, UnsupportedCheckpoint, "pre-tokenization 'mystery' is not supported, only gpt-2, smollm"),
        ({"model": "llama"}, UnsupportedCheckpoint, "tokenizer model 'llama' is not supported"),
        ({"merges": ["1 2", "Ġ zz"]}, CorruptFile, "1 merges of unknown tokens"),
        ({"tokens": [*TOKENS, "a"]}, CorruptFile, "1 tokens twice"),
        ({"bos": 10**6}, CorruptFile, "bos_token_id is 1000000, the vocabulary has 264"),
    ],
)
def test_a_tokenizer_that_we_cannot_reproduce_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[CheckpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        split_by(tmp_path, "x", **{"pre": "smollm", **changes})


def test_a_directory_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(MissingFile, match=r"tokenizer\.json is missing"):
        TextModel.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"tokenizer\.json has no model"):
        TextModel.load(tmp_path)


def with_tokenizer(directory: Path, smollm2_dir: Path, **settings: Any) -> Path:
    save_tiny(directory)
    (directory / "tokenizer.json").write_bytes((smollm2_dir / "tokenizer.json").read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def test_the_ends_of_config_generation_config_and_tokenizer_all_count(tmp_path: Path, smollm2_dir: Path) -> None:
    directory = with_tokenizer(tmp_path, smollm2_dir, eos_token={"content": "<|endoftext|>", "lstrip": False})
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert TextModel.load(directory).eos_ids == {0, 2, 5}


def test_a_template_in_its_own_file_goes_first(tmp_path: Path, smollm2_dir: Path) -> None:
    directory = with_tokenizer(tmp_path, smollm2_dir, chat_template="old", bos_token="<|im_start|>")
    assert TextModel.load(directory).render_chat([], now=NOW) == "old"
    (directory / "chat_template.jinja").write_text("new {{ bos_token }}")
    assert TextModel.load(directory).render_chat([], now=NOW) == "new <|im_start|>"


def test_a_model_without_a_template_says_so(tmp_path: Path, smollm2_dir: Path) -> None:
    with pytest.raises(InvalidChat, match="no chat template: use the completions endpoint"):
        TextModel.load(with_tokenizer(tmp_path, smollm2_dir)).render_chat([], now=NOW)


def test_a_gguf_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_llama())
    with pytest.raises(UnsupportedCheckpoint, match="tokenizer model ''"):
        TextModel.load(tmp_path)


def test_the_text_side_imports_no_torch(smollm2_dir: Path) -> None:
    modules = [
        *(f"bireme_worker.text.{path.stem}" for path in Path("worker/bireme_worker/text").glob("[a-z]*.py")),
        *(
            f"bireme_worker.checkpoints.{name}"
            for name in ("config", "errors", "layout", "packaged", "progress", "gguf_file")
        ),
    ]
    code = (
        f"import importlib, sys; from pathlib import Path; [importlib.import_module(name) for name in {modules!r}]\n"
        "from bireme_worker.text.tokenizer import TextModel\n"
        "TextModel.load(Path(sys.argv[1])).output().push([1, 2, 3])\n"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules), 'the text side loads torch'\n"
    )
    assert len(modules) > 10
    subprocess.run([sys.executable, "-c", code, str(smollm2_dir)], check=True)
