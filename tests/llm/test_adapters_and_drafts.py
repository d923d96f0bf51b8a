"""Adapters by model name and drafts, through real processes: the Python object, OpenAI's routes, the metrics."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from bireme.names import Env, Metric, Port
from bireme_worker import LLM, SamplingParams
from bireme_worker.llm.errors import InvalidInput
from tests.checkpoints.tiny import save_tiny
from tests.support.adapters import ALL_LINEAR, write_adapter
from tests.support.oracle import Oracle

PATIENCE_S = 60
PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


class Running:
    """One engine with an adapter, drafts and an HTTP process, and the reference of each model name."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        torch.set_num_threads(1)
        model, pirate = folder / "model", folder / "pirate"
        base = save_tiny(model, vocab_size=49152, initializer_range=0.3)
        self.references: dict[str, Any] = {"": base, "pirate": write_adapter(pirate, base, ALL_LINEAR, rank=4, seed=3)}
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, model)
        settings: dict[str, str] = {Env.HTTP_PROCESSES: "1"}
        self.llm = LLM(model, adapters={"pirate": pirate}, speculation=5, settings=settings)

    def url(self, port: int, path: str) -> str:
        return f"http://{self.llm.host}:{port}{path}"

    def get(self, port: int, path: str) -> httpx.Response:
        """The process may still be starting."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return httpx.get(self.url(port, path), timeout=PATIENCE_S)
            except httpx.ConnectError:
                assert time.monotonic() < deadline

    def metric(self, name: Metric) -> float:
        found = re.search(rf"^{name} (\S+)$", self.get(Port.ADMIN, "/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("adapters"), smollm2_dir)
    with one.llm:
        yield one


@pytest.mark.parametrize("adapter", ["", "pirate"])
def test_a_prompt_is_computed_by_the_adapter_that_was_asked_for(running: Running, adapter: str) -> None:
    prompts = [[5, 6, 7, 8], [9, 9, 9, 9, 9, 9]]
    oracle = Oracle(running.references[adapter])
    for result in running.llm.generate(prompts, PARAMS, adapter=adapter, progress=False):
        oracle.judge(result.prompt_token_ids, result.outputs[0].token_ids)
    oracle.verdict.check()


def test_an_adapter_is_a_model_to_openais_clients(running: Running) -> None:
    names = [model["id"] for model in running.get(Port.HTTP, "/v1/models").json()["data"]]
    assert names == ["model", "pirate"]
    ids = {}
    for name, adapter in (("model", ""), ("pirate", "pirate")):
        body = {"model": name, "prompt": [5, 6, 7, 8], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True, "speculate": adapter == ""}
        answer = httpx.post(running.url(Port.HTTP, "/v1/completions"), json=body, timeout=PATIENCE_S).json()
        ids[name] = answer["choices"][0]["token_ids"]
        (result,) = running.llm.generate([5, 6, 7, 8], PARAMS, adapter=adapter, progress=False)
        assert list(result.outputs[0].token_ids) == ids[name]
    assert ids["model"] != ids["pirate"]


def test_an_unknown_adapter_is_refused_by_name(running: Running) -> None:
    with pytest.raises(InvalidInput, match="the adapter 'sailor' is not loaded here, these are: pirate"):
        running.llm.generate([1, 2], adapter="sailor", progress=False)


def test_drafts_are_counted_and_can_be_left_out_for_a_request(running: Running) -> None:
    again = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logit_bias={7: 100.0})
    without = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logit_bias={7: 100.0}, speculate=False)
    before = running.metric(Metric.ACCEPTED)
    (plain,) = running.llm.generate([5, 6, 7], without, progress=False)
    (drafted,) = running.llm.generate([5, 6, 7], again, progress=False)
    assert drafted.outputs == plain.outputs
    deadline = time.monotonic() + PATIENCE_S
    while running.metric(Metric.ACCEPTED) < before + 20:
        assert time.monotonic() < deadline
    assert running.metric(Metric.DRAFTED) >= running.metric(Metric.ACCEPTED)
