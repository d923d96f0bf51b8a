"""`bireme convert`: files per rank hold what the whole checkpoint held, and change layouts without a loss."""

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bireme.cli.main import main
from bireme.names import Exit
from bireme_worker.checkpoints.errors import CheckpointError, CorruptFile, TargetExists, TruncatedFile
from bireme_worker.checkpoints.manifest import MANIFEST, Manifest
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.models.errors import CannotQuantize, CannotShard, WrongLayout
from bireme_worker.shards.convert import convert_sharded
from bireme_worker.text.tokenizer import TextModel
from tests.checkpoints.tiny import save_tiny, tiny_llama, write_gguf
from tests.quantization.packers import SIZES, gptq, gptq_settings, rewrite
from tests.quantization.reference import answers, farthest
from tests.support.rank_threads import threaded_ranks


def contents(path: Path) -> dict[str, torch.Tensor]:
    reader = open_checkpoint(path)
    try:
        return {name: reader.read(name) for name in reader.tensors}
    finally:
        reader.close()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("tied", [False, True])
def test_every_layout_holds_every_bit_and_layouts_change_into_one_another(tmp_path: Path, tied: bool) -> None:
    save_tiny(tmp_path / "hf", tie_word_embeddings=tied, num_attention_heads=4, num_key_value_heads=2)
    whole = contents(tmp_path / "hf")
    before = tmp_path / "hf"
    for tensor, pipeline in [(2, 2), (4, 1), (1, 2), (1, 1)]:
        target = tmp_path / f"{tensor}x{pipeline}"
        convert_sharded(before, target, tensor=tensor, pipeline=pipeline)
        assert same(contents(target), whole)
        before = target


def test_a_rank_reads_the_same_from_its_own_file(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", **SIZES)
    convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=2)
    assert farthest(model, answers(tmp_path / "cut", 2, 2)) < 1e-5 + farthest(model, answers(tmp_path / "hf", 2, 2))
    sizes = [file.stat().st_size for file in (tmp_path / "cut").glob("stage-*.safetensors")]
    assert len(sizes) == 4
    assert max(sizes) < (tmp_path / "hf" / "model.safetensors").stat().st_size / 2


def test_another_layout_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf")
    convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=1)
    with pytest.raises(
        WrongLayout, match=r"--tensor 2 --pipeline 1 .* bireme convert .*cut .* --tensor 1 --pipeline 2"
    ):
        threaded_ranks(tmp_path / "cut", 1, 2).__enter__()


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_a_quantized_conversion_equals_quantization_at_load(tmp_path: Path, name: str) -> None:
    save_tiny(tmp_path / "hf", **SIZES)
    convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=1, quantization=name)
    at_load = answers(tmp_path / "hf", 2, quantization=name)
    for wanted in ("none", name):
        converted = answers(tmp_path / "cut", 2, quantization=wanted)
        assert all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in zip(converted, at_load, strict=True))
    convert_sharded(tmp_path / "cut", tmp_path / "whole", tensor=1, pipeline=2)
    assert same(contents(tmp_path / "whole"), contents(tmp_path / "cut"))


def test_a_quantized_checkpoint_is_cut_as_it_is(tmp_path: Path) -> None:
    model = rewrite(tmp_path / "hf", gptq(act_order=True), gptq_settings(act_order=True))
    convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=2)
    assert farthest(model, answers(tmp_path / "cut", 2, 2)) < 2e-4
    assert same(contents(tmp_path / "cut"), contents(tmp_path / "hf"))
    with pytest.raises(CannotQuantize, match="quantized already"):
        convert_sharded(tmp_path / "hf", tmp_path / "twice", tensor=1, pipeline=1, quantization="int4")


def test_a_gguf_file_becomes_one_file_per_rank(tmp_path: Path) -> None:
    words = {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "smollm", "tokenizer__ggml__merges": ["t 1"]}
    tokens = ["t", "1", "t1", *(f"x{number}" for number in range(128))]
    write_gguf(tmp_path / "m.gguf", tiny_llama(), kind="Q8_0", tokenizer__ggml__tokens=tokens, **words)
    convert_sharded(tmp_path / "m.gguf", tmp_path / "cut", tensor=2, pipeline=1, dtype="bfloat16")
    whole = contents(tmp_path / "m.gguf")
    assert all(torch.equal(part, whole[name].bfloat16()) for name, part in contents(tmp_path / "cut").items())
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["dtype"] == "bfloat16"
    assert TextModel.load(tmp_path / "cut").encode("t1", add_special_tokens=False) == [0, 1]


def test_what_does_not_divide_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf")
    with pytest.raises(CannotShard, match="4 attention heads do not divide"):
        convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=3, pipeline=1)
    assert not (tmp_path / "cut").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf")
    (tmp_path / "cut").mkdir()
    with pytest.raises(TargetExists, match="cut exists"):
        convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=1, pipeline=1)


def test_a_cut_file_a_flipped_bit_and_a_lost_file_are_named(tmp_path: Path) -> None:
    save_tiny(tmp_path / "hf")
    cut = convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=1)
    file = cut / "stage-0-rank-1.safetensors"
    data = bytearray(file.read_bytes())
    Manifest.read(cut).verify(cut)
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"rank-1.safetensors has the checksum"):
        Manifest.read(cut).verify(cut)
    file.write_bytes(data[:-8])
    with pytest.raises(
        TruncatedFile, match=rf"rank-1.safetensors is {len(data) - 8} bytes, {MANIFEST} says {len(data)}"
    ):
        open_checkpoint(cut)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"rank-1.safetensors is missing"):
        open_checkpoint(cut)


def test_the_command_converts_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path / "hf")
    command = ["convert", str(tmp_path / "hf"), str(tmp_path / "cut"), "--tensor", "2"]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "cut")
    assert "stage-0-rank-1.safetensors" in json.loads((tmp_path / "cut" / MANIFEST).read_text())["files"]
    assert main(command) == Exit.BAD_CHECKPOINT
    assert "exists" in capsys.readouterr().err
    assert main([*command[:2], str(tmp_path / "other"), "--quantize", "int4"]) == Exit.BAD_CONFIGURATION
    assert "no whole groups of 64" in capsys.readouterr().err


HIDDEN, INNER, LAYERS, VOCABULARY = 1024, 4096, 26, 20000


def sparse_checkpoint(directory: Path) -> int:
    """A checkpoint of 1.1 GB that takes no room on the disk; returns the bytes of its largest tensor."""
    from bireme_worker.checkpoints.config import ModelConfig
    from bireme_worker.models.load import expected_tensors

    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "vocab_size": VOCABULARY,
        "dtype": "bfloat16",
    }
    shapes = expected_tensors(ModelConfig.parse(config))
    ends = list(itertools.accumulate(torch.Size(shape).numel() * 2 for shape in shapes.values()))
    described = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
        for (name, shape), begin, end in zip(shapes.items(), [0, *ends], ends, strict=False)
    }
    header = json.dumps(described).encode()
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + ends[-1])
    return VOCABULARY * HIDDEN * 2


def anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def test_a_conversion_takes_twice_the_largest_tensor_and_500_mb_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    largest = sparse_checkpoint(tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors").stat().st_size > 1.5 * (2 * largest + 500e6)
    command = ["convert", str(tmp_path / "hf"), str(tmp_path / "cut"), "--tensor", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "bireme.cli.main", *command], env=environment)
    peak, partial = 0, tmp_path / ".cut.partial" / "stage-0-rank-1.safetensors"
    while process.poll() is None and not partial.exists():  # the first of two equal files is done
        peak = max(peak, anonymous_bytes(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)  # the converter needs the core
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 50e6 < peak < 2 * largest + 500e6
    assert not (tmp_path / "cut").exists()
    with pytest.raises(CheckpointError, match=r"holds no model.safetensors"):
        open_checkpoint(tmp_path / ".cut.partial")
    save_tiny(tmp_path / "small")
    convert_sharded(tmp_path / "small", tmp_path / "cut", tensor=1, pipeline=1)
    assert not (tmp_path / ".cut.partial").exists()
    assert load_file(tmp_path / "cut" / "stage-0-rank-0.safetensors")
