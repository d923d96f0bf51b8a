"""`LLM` as a notebook uses it: a private group of real processes, judged by transformers."""

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bireme.wire.plan import Sampling
from bireme_worker import LLM, SamplingParams
from bireme_worker.llm.errors import EngineFailed, InvalidInput
from tests.checkpoints.tiny import save_tiny
from tests.support.oracle import Oracle

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time"]


class Running:
    """One engine of 2 × 2 ranks and what it was started from."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.model, self.logs = folder / "model", folder / "logs"
        torch.set_num_threads(1)
        self.reference: Any = save_tiny(self.model, vocab_size=49152, initializer_range=0.3)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, self.model)
        self.llm = LLM(self.model, tensor=2, pipeline=2, logs=self.logs)

    def rank_pids(self, stage: int) -> list[int]:
        return [
            int(pid) for pid in re.findall(r"rank \d+.* process (\d+)", (self.logs / f"stage-{stage}.log").read_text())
        ]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("llm"), smollm2_dir)
    with one.llm:
        yield one


def test_several_prompts_are_continued_in_their_order(running: Running) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(seed=7, max_tokens=12, n=2),
        SamplingParams(),
    ]
    results = running.llm.generate(PROMPTS, params, progress=False)
    assert [result.prompt for result in results] == PROMPTS
    assert [len(result.outputs[0].token_ids) for result in results] == [20, 12, 16]
    assert results[1].outputs[0].token_ids != results[1].outputs[1].token_ids
    oracle = Oracle(running.reference)
    oracle.judge(results[0].prompt_token_ids, results[0].outputs[0].token_ids)
    for choice in results[1].outputs:
        sampling = Sampling(temperature=1.0, seed=7, choice=choice.index)
        oracle.judge(results[1].prompt_token_ids, choice.token_ids, sampling)
    oracle.verdict.check()


def test_a_stop_string_ends_a_choice_and_is_not_in_its_text(running: Running) -> None:
    whole = running.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12), progress=False)[0]
    stop = whole.text[5:8]
    cut = running.llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop=stop), progress=False)[0]
    assert whole.outputs[0].finish_reason == "length"
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert cut.text == whole.text[: whole.text.index(stop)]


def test_logprobs_and_a_stop_id_come_with_the_choice(running: Running) -> None:
    ids = [5, 6, 7]
    plain = running.llm.generate(ids, SamplingParams(temperature=0, max_tokens=4, logprobs=2), progress=False)[0]
    assert plain.outputs[0].logprobs is not None
    assert [next(iter(entry)) for entry in plain.outputs[0].logprobs] == list(plain.outputs[0].token_ids)
    third = plain.outputs[0].token_ids[2]
    params = SamplingParams(temperature=0, max_tokens=4, stop_token_ids=[third])
    assert running.llm.generate(ids, params, progress=False)[0].outputs[0].stop_reason == third


def test_a_chat_is_answered_by_the_models_template(running: Running) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    result = running.llm.chat(messages, SamplingParams(max_tokens=3, seed=1), progress=False)[0]
    assert len(result.outputs[0].token_ids) == 3
    assert len(result.prompt_token_ids) > 10


def test_what_can_not_be_served_is_refused_and_the_engine_goes_on(running: Running) -> None:
    for prompt, params, words in (
        ([1, 999_999], SamplingParams(), "ids are 0 to 49151"),
        ([1] * 300, SamplingParams(), "the context holds 256"),
        ([1], SamplingParams(top_p=2), "top_p is 2"),
    ):
        with pytest.raises(InvalidInput, match=words):
            running.llm.generate([prompt, [1, 2]], params, progress=False)
    with pytest.raises(InvalidInput, match="2 sampling parameters came for 1 prompts"):
        running.llm.generate("a", [SamplingParams(), SamplingParams()])
    assert running.llm.generate([1, 2], progress=False)[0].outputs[0].token_ids


def test_a_lost_rank_is_replaced_while_the_batch_goes_on(running: Running) -> None:
    params = SamplingParams(temperature=0, max_tokens=120)
    before = running.llm.generate(PROMPTS, params, progress=False)
    victim = running.rank_pids(1)[0]
    killer = threading.Timer(0.05, os.kill, (victim, signal.SIGKILL))
    killer.start()
    after = running.llm.generate(PROMPTS, params, progress=False)
    killer.join()
    assert [result.text for result in after] == [result.text for result in before]


def test_prompts_that_come_while_ranks_are_lost_wait_for_the_group(running: Running) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    before = running.llm.generate(PROMPTS, params, progress=False)
    os.kill(running.rank_pids(0)[-1], signal.SIGKILL)
    after = running.llm.generate(PROMPTS, params, progress=False)
    assert [result.text for result in after] == [result.text for result in before]


def test_progress_is_told_on_stderr(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    running.llm.generate(PROMPTS, SamplingParams(max_tokens=2))
    assert "3/3 done, 6 tokens" in capsys.readouterr().err


def test_a_model_that_does_not_divide_is_refused_with_the_numbers(running: Running) -> None:
    with pytest.raises(EngineFailed, match="4 attention heads do not divide by tensor parallelism 3"):
        LLM(running.model, tensor=3)


def test_no_checkpoint_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="holds no model"):
        LLM(tmp_path)


def test_more_stages_than_layers_are_refused_before_a_process_starts(running: Running) -> None:
    with pytest.raises(EngineFailed, match="pipeline is 9, but the model has 2 layers: set it to at most 2"):
        LLM(running.model, pipeline=9, logs=running.logs / "none")
    assert not (running.logs / "none").exists()


def test_a_form_binds_every_choice(running: Running) -> None:
    shapes: list[tuple[dict[str, Any], str]] = [
        ({"regex": "[0-9]{2}-[a-f]"}, "[0-9]{2}-[a-f]"),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}}, r'\{\s*"a".*'),
    ]
    params = [
        SamplingParams(n=2, seed=3, max_tokens=40, structured_outputs=shape, prompt_logprobs=0) for shape, _ in shapes
    ]
    results = running.llm.generate(PROMPTS, params, progress=False)
    for result, (_, pattern) in zip(results, shapes, strict=True):
        for choice in result.outputs:
            assert re.fullmatch(pattern, choice.text, re.DOTALL), choice
    assert {choice.finish_reason for result in results[:2] for choice in result.outputs} == {"stop"}
    for wrong in ({"regex": "("}, {"regex": "a", "choice": ["a"]}, {}):
        with pytest.raises(InvalidInput, match="structured_outputs"):
            running.llm.generate("x", SamplingParams(structured_outputs=wrong), progress=False)


def test_the_tokens_of_a_prompt_are_scored(running: Running) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2, logprobs=0)
    (result,) = running.llm.generate(PROMPTS[0], params, progress=False)
    assert result.prompt_logprobs is not None
    first, *scores = result.prompt_logprobs
    assert first is None
    ids = [*result.prompt_token_ids, *result.outputs[0].token_ids]
    with torch.inference_mode():
        raw = running.reference(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    assert [next(iter(score)) for score in scores if score is not None] == ids[1 : len(result.prompt_token_ids)]
    for place, score in enumerate(scores):
        assert score is not None
        assert len(score) in (2, 3)
        for token, value in score.items():
            assert value == pytest.approx(float(raw[place, token]), abs=1e-3)
