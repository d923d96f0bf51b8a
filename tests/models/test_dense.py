"""Dense decoder families against transformers, in every layout; every kind of rotation; vocabularies that don't divide.

T14 to T18 of the research on inference servers' faults are here by number, but for T15's grid of heads
(tests/rank/test_llama.py); more damaged files are in tests/checkpoints/test_refusals.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from bireme.wire.plan import Sampling
from bireme_worker.checkpoints.errors import CheckpointError, UnsupportedCheckpoint
from bireme_worker.checkpoints.layout import load_model_config
from bireme_worker.checkpoints.open import open_checkpoint
from bireme_worker.models.load import check
from tests.checkpoints.tiny import write_gguf
from tests.models.dense_models import FAMILIES, ROPES, SIZES, roped
from tests.models.random_models import VOCABULARY, judge, prompts, written
from tests.support.generation import Request, generate
from tests.support.rank_threads import threaded_ranks

TP_PP = [(1, 1), (2, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize(("tensor", "stages"), TP_PP)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_ids_are_those_of_transformers(tmp_path: Path, family: str, tensor: int, stages: int) -> None:
    judge(tmp_path, written(tmp_path, FAMILIES[family]), tensor, stages)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_t14_tied_embeddings_are_on_the_last_stage_too(tmp_path: Path, family: str, stages: int) -> None:
    def make() -> Any:
        if family == "llama":
            return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
        return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))

    judge(tmp_path, written(tmp_path, make), 1, stages, steps=4)


def test_t16_padding_of_a_vocabulary_is_never_sampled_and_has_no_mass(tmp_path: Path) -> None:
    written(tmp_path, lambda: LlamaForCausalLM(LlamaConfig(**SIZES)))
    hot = Sampling(temperature=50.0, seed=7, logprobs=VOCABULARY)
    requests = [Request(prompt, 12, hot) for prompt in prompts()]
    with threaded_ranks(tmp_path, 2) as ranks:
        generate(ranks, requests)
    for request in requests:
        assert max(request.outputs) < VOCABULARY
        for reported in request.logprobs:
            assert reported is not None
            ids, values = zip(*reported.top, strict=True)
            assert sorted(ids) == list(range(VOCABULARY))
            assert torch.tensor(values, dtype=torch.float64).exp().sum() == pytest.approx(1, abs=1e-5)


Tensors = dict[str, torch.Tensor]
LAST: Final = "model.layers.1.self_attn.qkv_proj.weight"
DAMAGE: Final[dict[str, tuple[Callable[[Tensors], object], str]]] = {
    "a tensor is missing": (lambda tensors: tensors.pop(LAST), LAST),
    "a tensor too many": (lambda tensors: tensors.update(extra=torch.ones(2)), "extra"),
    "another shape": (lambda tensors: tensors.update({LAST: tensors[LAST][:-1]}), LAST),
    "another dtype": (lambda tensors: tensors.update({LAST: tensors[LAST].to(torch.int32)}), LAST),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_t17_a_checkpoint_that_is_not_whole_is_refused_by_the_tensors_name(tmp_path: Path, damage: str) -> None:
    written(tmp_path, FAMILIES["phi3"])
    file, (change, words) = tmp_path / "model.safetensors", DAMAGE[damage]
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=words):
        check(load_model_config(tmp_path), open_checkpoint(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_t17_a_file_that_is_cut_or_gone_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    written(tmp_path, FAMILIES["phi3"])
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100]) if damage == "cut" else file.unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_type", "type"])
@pytest.mark.parametrize("rope", ROPES)
def test_t18_every_rotation_is_that_of_transformers_in_every_spelling(tmp_path: Path, rope: str, spelling: str) -> None:
    model = written(tmp_path, lambda: roped(rope))
    if spelling != "rope_parameters":
        respell(tmp_path / "config.json", spelling)
    judge(tmp_path, model, 1, 1, steps=3)


def test_t18_an_unknown_rotation_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path, lambda: roped("linear"))
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"linear"', '"spiral"'))
    with pytest.raises(UnsupportedCheckpoint, match="rope_type 'spiral' is not supported, only default, linear"):
        load_model_config(tmp_path)


def respell(path: Path, key: str) -> None:
    """The same settings as files from before transformers 5 have them."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {**rope, key: rope.pop("rope_type")}
    path.write_text(json.dumps(config))
    assert "rope_type" in config["rope_scaling"] or key == "type"


def test_old_gemma3_files_name_the_second_base_apart(tmp_path: Path) -> None:
    model = written(tmp_path, FAMILIES["gemma3"])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"], config["layer_types"]
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    path.write_text(json.dumps({**config, "sliding_window_pattern": 2}))
    judge(tmp_path, model, 1, 1, steps=3)


def test_the_longest_context_is_what_the_rotation_allows(tmp_path: Path) -> None:
    for family, longest in (("phi3, longrope", 160), ("mistral", 160)):
        written(tmp_path, FAMILIES[family])
        assert load_model_config(tmp_path).max_position_embeddings == longest
    written(tmp_path, lambda: roped("yarn, own slopes"))
    assert load_model_config(tmp_path).max_position_embeddings == 512, "8 times 64"


def test_what_a_file_leaves_out_is_as_transformers_assumes(tmp_path: Path) -> None:
    """Gemma's published files say nothing of tied embeddings."""
    model = written(tmp_path, FAMILIES["gemma2"])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key in ("tie_word_embeddings", "layer_types", "hidden_activation", "attention_bias"):
        config.pop(key, None)
    path.write_text(json.dumps(config))
    judge(tmp_path, model, 1, 1, steps=3)


@pytest.mark.parametrize(("family", "kind"), [("qwen2", "F32"), ("qwen3", "F32")])
def test_gguf_files_of_qwen_give_what_the_original_gives(tmp_path: Path, family: str, kind: str) -> None:
    (tmp_path / "hf").mkdir()
    model = written(tmp_path / "hf", FAMILIES[family])
    write_gguf(tmp_path / "m.gguf", model, kind=kind)
    judge(tmp_path / "m.gguf", model, 2, 1, steps=3)
