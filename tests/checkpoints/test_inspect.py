"""`bireme inspect`: its figures are those that ranks really have, also where there is only a config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from bireme.cli.main import main
from bireme.names import Exit
from bireme_worker.models.kv_cache import BLOCK_SIZE
from bireme_worker.shards.convert import convert_sharded
from bireme_worker.shards.inspect import inspect
from tests.checkpoints.tiny import save_tiny
from tests.quantization.packers import SIZES, gptq, gptq_settings, rewrite
from tests.support.rank_threads import threaded_ranks


@pytest.mark.parametrize("name", ["none", "int8", "int4", "fp8"])
def test_the_memory_of_ranks_is_what_they_really_take(tmp_path: Path, name: str) -> None:
    model = save_tiny(tmp_path, **SIZES)
    facts = inspect(tmp_path, 2, 2, memory=1 << 20, quantization=name, kv_dtype="int8", dtype="float32")
    assert facts.parameters == sum(value.numel() for value in model.parameters())
    with threaded_ranks(tmp_path, 2, 2, quantization=name, kv_dtype="int8", kv_bytes=1 << 20) as ranks:
        for runner, need in zip(ranks.runners[::2], facts.ranks, strict=True):
            held = sum(weight.nbytes for weight in runner.model.weights())
            assert held * 0.9 < need.weights <= held * 1.1  # packing adds rows to some
            assert runner.cache.blocks == (1 << 20) // (need.kv_per_token * BLOCK_SIZE)
            assert need.tokens == ((1 << 20) - need.weights) // (need.kv_per_token * BLOCK_SIZE) * BLOCK_SIZE
    assert facts.tokens == min(need.tokens or 0 for need in facts.ranks)


def test_a_bare_config_is_enough(tmp_path: Path) -> None:
    save_tiny(tmp_path, **SIZES)
    (tmp_path / "model.safetensors").unlink()
    facts = inspect(tmp_path, 2)
    assert facts.checkpoint_bytes is None
    assert facts.ranks[0].weights > 0
    assert (2, 2) in facts.fitting
    assert (2, 3) not in facts.fitting  # two layers
    assert "4 attention heads do not divide by tensor parallelism 3" in facts.refused["--tensor 3"]


def test_quantization_groups_decide_which_layouts_fit(tmp_path: Path) -> None:
    rewrite(tmp_path, gptq(), gptq_settings())
    facts = inspect(tmp_path, 4)
    assert facts.quantization == "gptq 4 bits, groups of 64"
    assert not facts.ranks
    assert "quantization groups hold 64" in facts.refused["4 x 1"]
    assert {tensor for tensor, _ in facts.fitting} == {1, 2}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["inspect", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_command_prints_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path / "hf", **SIZES)
    code, text = run(capsys, str(tmp_path / "hf"), "--tensor", "2", "--pipeline", "2", "--memory", "1MiB")
    assert code == 0
    assert "stage 1: 1 layers, weights" in text
    assert "tokens of all requests together fit in 1.0 MiB per rank" in text
    assert "refused --tensor 3: 4 attention heads do not divide" in text
    code, text = run(capsys, str(tmp_path / "hf"), "--tensor", "2", "--json")
    facts: dict[str, Any] = json.loads(text)
    assert code == 0
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["ranks"][0]["layers"] == 2


def test_the_command_refuses_with_the_exit_codes_of_a_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "hf")
    code, text = run(capsys, str(tmp_path / "hf"), "--tensor", "3")
    assert code == Exit.BAD_CONFIGURATION
    assert "refused 3 x 1" in text
    code, text = run(capsys, str(tmp_path / "nothing"))
    assert code == Exit.BAD_CHECKPOINT
    assert "does not exist" in text
    convert_sharded(tmp_path / "hf", tmp_path / "cut", tensor=2, pipeline=1)
    assert run(capsys, str(tmp_path / "cut"), "--tensor", "2", "--verify")[0] == 0
    file = tmp_path / "cut" / "stage-0-rank-0.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert run(capsys, str(tmp_path / "cut"), "--tensor", "2", "--verify")[0] == Exit.BAD_CHECKPOINT
