"""The node's cache of a rank's slices: written once, read at the next start, rebuilt when broken, bounded in size."""

import os
from pathlib import Path

import pytest
import torch

from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import SIZES
from tests.quantization.reference import answers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "hf", **SIZES)
    return tmp_path / "hf"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.safetensors"))


def alike(one: list[tuple[list[int], torch.Tensor]], other: list[tuple[list[int], torch.Tensor]]) -> bool:
    return all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["none", "int4"])
def test_the_second_start_reads_only_what_the_first_one_wrote(
    source: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = answers(source, 2, 2, quantization=name)
    cache = tmp_path / "cache"
    assert alike(answers(source, 2, 2, quantization=name, shard_cache=cache), plain)
    written = [(path, path.stat().st_ino) for path in entries(cache)]
    assert len(written) == 4
    monkeypatch.delattr("bireme_worker.checkpoints.safetensors_reader.SafetensorsReader.read")
    assert alike(answers(source, 2, 2, quantization=name, shard_cache=cache), plain)
    assert [(path, path.stat().st_ino) for path in entries(cache)] == written


def test_each_layout_format_and_version_of_the_files_has_entries_of_its_own(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for count, (tensor, name) in enumerate([(1, "none"), (1, "int8"), (2, "none")], 1):
        answers(source, tensor, quantization=name, shard_cache=cache)
        assert len(entries(cache)) == count + (tensor - 1)
    os.utime(source / "model.safetensors", ns=(1, 1))
    answers(source, shard_cache=cache)
    assert len(entries(cache)) == 5


@pytest.mark.parametrize("damage", ["a flipped bit", "a cut file", "no note", "a broken note", "a partial file"])
def test_a_broken_entry_is_rebuilt_with_a_warning(
    source: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    plain = answers(source, shard_cache=cache)
    (file,) = entries(cache)
    whole = file.read_bytes()
    if damage == "a flipped bit":
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "a cut file":
        os.truncate(file, len(whole) // 2)
    elif damage == "no note":
        file.with_suffix(".note").unlink()
        file.write_bytes(whole[:-8])
    elif damage == "a broken note":
        file.with_suffix(".note").write_text("{")
    else:
        file.rename(file.with_suffix(".partial"))
    assert alike(answers(source, shard_cache=cache), plain)
    assert file.read_bytes() == whole
    assert ("is broken and is written again" in caplog.text) == (damage != "no note")


def test_what_was_used_longest_ago_goes_first(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    answers(source, shard_cache=cache, quantization="int8")
    (first,) = entries(cache)
    answers(source, shard_cache=cache, quantization="fp8")
    (second,) = set(entries(cache)) - {first}
    os.utime(first, ns=(2, 2))
    os.utime(second, ns=(1, 1))
    bound = first.stat().st_size + second.stat().st_size + 1000
    answers(source, shard_cache=cache, shard_cache_bytes=bound, quantization="int4")
    assert first in entries(cache)
    assert second not in entries(cache)
    assert not second.with_suffix(".note").exists()


def test_a_cache_that_can_not_be_had_is_only_warned_of(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    plain = answers(source)
    assert alike(answers(source, shard_cache=tmp_path / "file"), plain)
    assert alike(answers(source, shard_cache=tmp_path / "cache", shard_cache_bytes=1000), plain)
    assert "is not used" in caplog.text
    assert "has no room" in caplog.text
    assert not entries(tmp_path / "cache")
