"""Vectors of BERT and XLM-R against transformers, in every layout, texts of all lengths in one step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaModel

from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids
from bireme_worker.checkpoints.errors import UnsupportedCheckpoint
from bireme_worker.checkpoints.layout import load_model_config
from tests.models.random_models import LAYERS, prompts, written
from tests.support.rank_threads import threaded_ranks

TP_PP = [(1, 1), (2, 1), (1, 2), (2, 2)]
SIZES: dict[str, Any] = {**LAYERS, "intermediate_size": 80, "max_position_embeddings": 130}
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "xlm-r": lambda: XLMRobertaModel(XLMRobertaConfig(**SIZES, type_vocab_size=1, pad_token_id=1)),
}


def write_modules(directory: Path, mode: str, *more: str) -> None:
    """The files by which sentence-transformers says how to pool."""
    kinds = ["Transformer", "Pooling", "Normalize", *more]
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{one}": one == mode for one in ("cls_token", "mean_tokens", "max_tokens")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **modes}))


def vectors(source: Path, texts: list[list[int]], tensor: int = 1, stages: int = 1) -> torch.Tensor:
    rows = tuple(Row(slot, 0, len(ids), pack_ids(ids), (), 0) for slot, ids in enumerate(texts, 1))
    admits = tuple(Admit(row.slot, Sampling()) for row in rows)
    with threaded_ranks(source, tensor, stages) as ranks:
        ranks.send_plan(Plan(ranks.epoch, 0, rows, admits))
        result = ranks.receive_result()
    assert not result.bad
    return torch.stack([torch.frombuffer(bytearray(vector), dtype=torch.float32) for vector in result.vectors])


def expected(model: Any, texts: list[list[int]], mode: str) -> torch.Tensor:
    with torch.inference_mode():
        states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in texts]
    pooled = [state[0] if mode == "cls_token" else state.mean(0) for state in states]
    return functional.normalize(torch.stack(pooled), dim=-1)


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.norm(dim=-1) - 1).abs().max() < 1e-5
    assert functional.cosine_similarity(ours, theirs).min() > 1 - 1e-6


@pytest.mark.parametrize(("tensor", "stages"), TP_PP)
@pytest.mark.parametrize(("family", "mode"), [("bert", "cls_token"), ("xlm-r", "mean_tokens")])
def test_vectors_are_those_of_transformers(tmp_path: Path, family: str, mode: str, tensor: int, stages: int) -> None:
    model = written(tmp_path, MODELS[family])
    write_modules(tmp_path, mode)
    texts = prompts()
    assert_alike(vectors(tmp_path, texts, tensor, stages), expected(model, texts, mode))


def test_without_a_word_about_pooling_it_is_the_mean(tmp_path: Path) -> None:
    model = written(tmp_path, MODELS["bert"])
    assert_alike(vectors(tmp_path, prompts()), expected(model, prompts(), "mean_tokens"))


def test_old_files_with_a_prefix_and_a_position_table_are_read(tmp_path: Path) -> None:
    model = written(tmp_path, MODELS["bert"])
    file = tmp_path / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items() if not name.startswith("pooler")}
    save_file({**tensors, "bert.embeddings.position_ids": torch.zeros(1, 130)}, file, {"format": "pt"})
    assert_alike(vectors(tmp_path, prompts()), expected(model, prompts(), "mean_tokens"))


def test_the_longest_text_is_that_of_the_positions_or_of_the_sentence_settings(tmp_path: Path) -> None:
    written(tmp_path, MODELS["xlm-r"])
    assert load_model_config(tmp_path).max_position_embeddings == 128, "XLM-R's first two positions are padding's"
    write_modules(tmp_path, "mean_tokens")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    assert load_model_config(tmp_path).max_position_embeddings == 64


@pytest.mark.parametrize(("mode", "more"), [("max_tokens", ()), ("mean_tokens", ("Dense",))])
def test_other_pooling_and_other_modules_are_refused_by_name(tmp_path: Path, mode: str, more: tuple[str, ...]) -> None:
    written(tmp_path, MODELS["bert"])
    write_modules(tmp_path, mode, *more)
    with pytest.raises(UnsupportedCheckpoint, match="max_tokens" if mode == "max_tokens" else "Dense"):
        load_model_config(tmp_path)
