"""Whatever is wrong with the files is refused when they are opened, with the name and the numbers."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from bireme_worker.checkpoints.errors import (
    CheckpointError,
    CorruptFile,
    DuplicateTensor,
    MissingFile,
    MissingTensor,
    TruncatedFile,
    UnexpectedTensor,
    UnsupportedCheckpoint,
    WrongShape,
)
from bireme_worker.checkpoints.open import open_checkpoint
from tests.checkpoints.tiny import change_json, save_tiny, tiny_llama, write_gguf

INDEX = "model.safetensors.index.json"


def write_raw(directory: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    (directory / "config.json").write_text("{}")
    prefix = (len(header) if length is None else length).to_bytes(8, "little")
    (directory / "model.safetensors").write_bytes(prefix + header + data)
    return directory


def described(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def entry(begin: int, end: int, dtype: str = "F32", shape: Any = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def sharded(directory: Path) -> dict[str, str]:
    """A checkpoint of several files; returns its weight map."""
    save_tiny(directory, max_shard_size="60KB")
    weight_map: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
    return weight_map


def test_a_cut_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(whole - 100)
    with pytest.raises(
        TruncatedFile, match=rf"model\.safetensors is {whole - 100} bytes, its header needs {whole}: copy"
    ):
        open_checkpoint(tmp_path)


def test_a_cut_gguf_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, tiny_llama())
    whole = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(whole // 2)
    with pytest.raises(TruncatedFile, match=rf"m\.gguf is {whole // 2} bytes, its header needs \d+: copy"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("size", [0, 3, 20, 200])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_file_cut_inside_its_header_is_refused_by_name(tmp_path: Path, kind: str, size: int) -> None:
    save_tiny(tmp_path) if kind == "safetensors" else write_gguf(tmp_path / "m.gguf", tiny_llama())
    (file,) = tmp_path.glob(f"*.{kind}")
    with file.open("r+b") as opened:
        opened.truncate(size)
    with pytest.raises((TruncatedFile, CorruptFile), match=file.name):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("header", "data", "error", "words"),
    [
        (b"not json at all!", b"", CorruptFile, "no safetensors header"),
        (b"[1, 2, 3]", b"", CorruptFile, "not a JSON object"),
        (b"\xff\xfe\x00garbage", b"", CorruptFile, "no safetensors header"),
        (b"[" * 200_000, b"", CorruptFile, "no safetensors header"),
        (described(a={"dtype": "F32"}), b"", CorruptFile, "data_offsets for a"),
        (described(a=entry(0, 8, shape=[-2])), bytes(8), CorruptFile, "data_offsets for a"),
        (described(a=entry(0, 8, shape="xy")), bytes(8), CorruptFile, "data_offsets for a"),
        (described(a=entry(0, 12)), bytes(12), CorruptFile, "a needs 8 bytes"),
        (described(a=entry(-8, 0)), bytes(8), CorruptFile, "a needs 8 bytes"),
        (described(a=entry(0, 8), b=entry(4, 12)), bytes(12), CorruptFile, "b begins at"),
        (described(a=entry(0, 8), b=entry(16, 24)), bytes(24), CorruptFile, "b begins at"),
        (described(a=entry(0, 8)), bytes(20), CorruptFile, "its header describes"),
        (described(a=entry(0, 2, "I8")), bytes(2), UnsupportedCheckpoint, "a is of type I8, supported are F32, F16"),
        (b'{"a":{}, "a":{}}', b"", DuplicateTensor, "a twice"),
    ],
)
def test_a_broken_safetensors_header_is_refused(
    tmp_path: Path, header: bytes, data: bytes, error: type[CheckpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_checkpoint(write_raw(tmp_path, header, data))


def test_a_header_that_claims_to_be_enormous_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"header of 1000000000000 bytes, the limit is 100000000"):
        open_checkpoint(write_raw(tmp_path, b"{}", length=10**12))


def test_a_file_that_the_index_names_but_that_is_missing_is_named(tmp_path: Path) -> None:
    gone = sorted(set(sharded(tmp_path).values()))[1]
    (tmp_path / gone).unlink()
    with pytest.raises(MissingFile, match=f"lacks {gone}"):
        open_checkpoint(tmp_path)


def test_a_tensor_that_is_not_in_the_file_that_the_index_names_is_named(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    file = weight_map["model.norm.weight"]
    change_json(tmp_path / INDEX, weight_map={**weight_map, "model.extra.weight": file})
    with pytest.raises(MissingTensor, match=f"model.extra.weight in {file}"):
        open_checkpoint(tmp_path)


def test_a_tensor_that_the_index_does_not_name_is_named(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    change_json(tmp_path / INDEX, weight_map={k: v for k, v in weight_map.items() if k != "model.norm.weight"})
    with pytest.raises(UnexpectedTensor, match=r"model\.norm\.weight"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_refused_with_both_files(tmp_path: Path) -> None:
    for name, tensors in {"one": ["a", "b"], "two": ["b", "c"]}.items():
        save_file({tensor: torch.ones(2) for tensor in tensors}, tmp_path / f"{name}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(DuplicateTensor, match=r"b is in one\.safetensors and in two\.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("place", ["../other.safetensors", "/etc/passwd", 7])
def test_an_index_cannot_reach_out_of_its_directory(tmp_path: Path, place: Any) -> None:
    weight_map = sharded(tmp_path)
    change_json(tmp_path / INDEX, weight_map={**weight_map, "model.norm.weight": place})
    with pytest.raises(CorruptFile, match="no file name in its directory"):
        open_checkpoint(tmp_path)


def test_an_index_that_is_cut_is_refused_by_name(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": {"a')
    with pytest.raises(CorruptFile, match=r"index\.json is not JSON"):
        open_checkpoint(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(MissingFile, match=r"config\.json"):
        open_checkpoint(tmp_path)


def touch(*names: str) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        for name in names:
            (directory / name).touch()
        return directory

    return make


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda path: path / "gone", MissingFile, "gone does not exist"),
        (touch(), MissingFile, "holds no model.safetensors"),
        (touch("pytorch_model.bin"), UnsupportedCheckpoint, "pickled"),
        (touch("a.gguf", "b.gguf"), UnsupportedCheckpoint, r"a\.gguf, b\.gguf"),
        (lambda path: touch("notes.txt")(path) / "notes.txt", UnsupportedCheckpoint, "no \\*.gguf"),
        (touch("a.gguf"), CorruptFile, "a.gguf is empty"),
    ],
)
def test_a_path_without_a_checkpoint_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], error: type[CheckpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_checkpoint(make(tmp_path))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"llama__expert_count": 8}, UnsupportedCheckpoint, "mixture of experts"),
        ({"llama__rope__scaling__type": "spiral"}, UnsupportedCheckpoint, "rope_type 'spiral' is not supported"),
        ({"llama__rope__dimension_count": 8}, UnsupportedCheckpoint, "rope over 8 of 16"),
        ({"split__count": 3}, UnsupportedCheckpoint, "merge them first"),
        ({"llama__attention__key_length": 48}, WrongShape, "64 rows, no multiple of head_dim 48"),
    ],
)
def test_a_gguf_file_of_an_unsupported_kind_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[CheckpointError], words: str
) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_llama(), **changes)
    with pytest.raises(error, match=words):
        open_checkpoint(tmp_path)


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        (b"GGUF", b"GGML", CorruptFile, "no GGUF file"),
        (b"GGUF\x03", b"GGUF\x09", UnsupportedCheckpoint, "GGUF version 9"),
        (struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"grok1", UnsupportedCheckpoint, "'grok1'"),
        (b"blk.0.attn_q.weight", b"blk.0.attn_z.weight", UnexpectedTensor, r"blk\.0\.attn_z\.weight"),
        (b"blk.0.attn_q.weight", b"blk.0.attn_k.weight", DuplicateTensor, r"blk\.0\.attn_k\.weight twice"),
        (b"token_embd.weight", b"token_xmbd.weight", UnsupportedCheckpoint, r"no tensor token_embd\.weight"),
    ],
)
def test_a_gguf_header_of_another_kind_is_refused(
    tmp_path: Path, old: bytes, new: bytes, error: type[CheckpointError], words: str
) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_llama())
    replace_bytes(tmp_path / "m.gguf", old, new)
    with pytest.raises(error, match=words):
        open_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def good_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "m.gguf"
    write_gguf(path, tiny_llama())
    return path.read_bytes()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 2500), value=st.binary(min_size=1, max_size=8))
def test_random_damage_to_a_gguf_header_never_crashes(
    tmp_path: Path, good_gguf: bytes, place: int, value: bytes
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(good_gguf[:place] + value + good_gguf[place + len(value) :])
    with suppress(CheckpointError):  # any other exception fails the test
        open_checkpoint(path).close()
