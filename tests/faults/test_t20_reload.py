"""T20: another checkpoint in place, under load, with everything that can go wrong on the way.

Every answer is judged by the oracle on the weights of the revision that it names: nothing of the other ones may be in it.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import AsyncOpenAI
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from bireme.wire.plan import Sampling
from bireme_operator.local.wish import SIGNAL, Wish, write_wish
from tests.checkpoints.tiny import save_tiny
from tests.faults.tiny import MODEL, SHAPES, make_tiny, tiny_deployment
from tests.support.deployment import RECOVER_LIMIT_S, Deployment, parent_of, until, up_environment
from tests.support.oracle import Oracle
from tests.support.streams import PROMPTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NAMES = {"1": MODEL, "2": "tuned"}
"""Directory of each model revision."""
CLIENTS = 8
GREEDY = Sampling()
MAX_TOKENS = 24


@dataclass
class Answer:
    """One stream: the ids and the revision that each of its events named."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    finish: str | None = None


@dataclass
class Reloaded:
    """A served group and the references of both checkpoints."""

    deployment: Deployment
    references: dict[str, Any]

    async def ask(
        self, prompt: str, sampling: Sampling = GREEDY, max_tokens: int = MAX_TOKENS, answer: Answer | None = None
    ) -> Answer:
        """``answer`` may be given, so that somebody sees it grow."""
        answer = Answer() if answer is None else answer
        async for chunk in self._chunks(prompt, sampling, max_tokens):
            answer.prompt_ids = getattr(chunk, "prompt_token_ids", None) or answer.prompt_ids
            for choice in chunk.choices:
                ids = getattr(choice, "token_ids", None) or []
                answer.ids += ids
                answer.named += [chunk.system_fingerprint] * len(ids)
                answer.finish = choice.finish_reason or answer.finish
        assert answer.finish == "length"
        assert len(answer.ids) == max_tokens
        return answer

    async def _chunks(self, prompt: str, sampling: Sampling, max_tokens: int) -> AsyncIterator[Any]:
        async with AsyncOpenAI(base_url=f"{self.deployment.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model=MODEL,
                prompt=prompt,
                temperature=sampling.temperature,
                seed=sampling.seed,
                max_tokens=max_tokens,
                stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            async for chunk in stream:
                yield chunk

    def judge(self, answer: Answer, sampling: Sampling = GREEDY) -> str:
        """The one revision that the answer names, after its ids were judged by it."""
        [revision] = set(answer.named)
        oracle = Oracle(self.references[revision])
        oracle.judge(answer.prompt_ids, answer.ids, sampling)
        oracle.verdict.check()
        return revision

    def reload(self, directory: str, revision: str, mode: str = "finish") -> "subprocess.CompletedProcess[str]":
        """`bireme reload`, to its end."""
        words = [self.deployment.name, "--path", f"/models/{directory}", "--revision", revision, "--mode", mode]
        return subprocess.run(
            [sys.executable, "-m", "bireme.cli.main", "reload", *words, "--timeout", str(RECOVER_LIMIT_S)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=up_environment(self.deployment.run_dir),
            timeout=RECOVER_LIMIT_S + 30,
            check=False,
        )

    def wish(self, revision: str, mode: str = "finish") -> None:
        """What `bireme reload` does, without the second that a Python process takes to start."""
        path = self.deployment.run_dir / self.deployment.name / "wishes"
        write_wish(path, Wish(f"/models/{NAMES[revision]}", revision, mode))
        self.deployment.process.send_signal(SIGNAL)

    def serve(self, revision: str) -> None:
        """Bring the group to a revision."""
        done = self.reload(NAMES[revision], revision)
        assert done.returncode == 0, f"{done.stdout}\n{self.deployment.tail()}"
        assert self.deployment.state(0).model_revision == revision

    def rank_pid(self, stage: int) -> int:
        return next(one for one in self.deployment.state(0).stages if one.stage == stage).ranks[-1].pid

    def serves_again(self, revision: str, above: int) -> None:
        """Wait for an epoch later than ``above`` under ``revision``."""

        def serving() -> bool:
            if not self.deployment.serves_later(0, above):
                return False
            with suppress(httpx.HTTPError):
                document = self.deployment.state(0)
                return document.epoch > above and document.model_revision == revision
            return False

        until(serving, RECOVER_LIMIT_S, self.deployment.tail)


def _perturbed(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    torch.manual_seed(7)
    weights = load_file(source / "model.safetensors")
    noisy = {name: one + 0.05 * one.std() * torch.randn_like(one) for name, one in weights.items() if one.dim() > 1}
    save_file(weights | noisy, target / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both checkpoints, and some that can't be served."""
    folder = tmp_path_factory.mktemp("models")
    served = make_tiny(folder / NAMES["1"])
    _perturbed(served, folder / NAMES["2"])
    shutil.copytree(served, folder / "truncated")
    os.truncate(folder / "truncated" / "model.safetensors", 1_000_000)
    shutil.copytree(served, folder / "other")
    save_tiny(folder / "other", vocab_size=49152, max_position_embeddings=4096, hidden_size=32)
    shutil.copytree(served, folder / "mute")
    (folder / "mute" / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"tp{shape[0]}-pp{shape[1]}")
def group(request: pytest.FixtureRequest, models: Path) -> Iterator[Reloaded]:
    references = {name: LlamaForCausalLM.from_pretrained(models / directory) for name, directory in NAMES.items()}
    tensor, pipeline = request.param
    with tiny_deployment(tensor, pipeline, models / MODEL) as deployment:
        yield Reloaded(deployment, references)


async def test_a_to_b_to_a_under_load_fails_nothing_and_names_what_answered(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    done = asyncio.Event()
    answers: list[tuple[Sampling, Answer]] = []

    async def client(number: int) -> None:
        turn = 0
        while not done.is_set():
            seed = 100 * number + turn
            sampling = Sampling() if turn % 2 else Sampling(temperature=0.9, seed=seed)
            answers.append((sampling, await group.ask(PROMPTS[number % len(PROMPTS)], sampling)))
            turn += 1

    async def operator() -> None:
        for revision in ("2", "1"):
            await asyncio.to_thread(group.serve, revision)
            served = len(answers)
            while len(answers) < served + 2 * CLIENTS:
                await asyncio.sleep(0.05)
        done.set()

    epoch = group.deployment.state(0).epoch
    await asyncio.gather(operator(), *(client(number) for number in range(CLIENTS)))
    assert {group.judge(answer, sampling) for sampling, answer in answers} == {"1", "2"}
    assert group.deployment.state(0).epoch == epoch, "a reload needs no new epoch"


@pytest.mark.parametrize(
    ("directory", "words"),
    [("truncated", "model.safetensors"), ("other", "hidden_size is 32, served is 64"), ("mute", "tokenizer.json")],
)
async def test_a_checkpoint_that_can_not_be_served_leaves_the_old_one_and_says_why(
    group: Reloaded, directory: str, words: str
) -> None:
    await asyncio.to_thread(group.serve, "1")
    epoch = group.deployment.state(0).epoch
    done = await asyncio.to_thread(group.reload, directory, f"bad-{directory}")
    assert done.returncode == 65, done.stdout
    assert "ReloadFailed" in done.stdout
    assert words in done.stdout
    assert group.judge(await group.ask(PROMPTS[0])) == "1"
    assert group.deployment.state(0).epoch == epoch


async def test_a_rank_lost_before_the_commit_costs_nothing_but_a_second_try(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    epoch = group.deployment.state(0).epoch
    victim = group.rank_pid(group.deployment.state(0).stages[-1].stage)
    os.kill(victim, signal.SIGSTOP)
    group.wish("2")
    await asyncio.to_thread(until, lambda: _stages_or_did(group, "2"), RECOVER_LIMIT_S, group.deployment.tail)
    with suppress(ProcessLookupError):  # a machine that stands still makes it one that hung for too long
        os.kill(victim, signal.SIGKILL)
    asked = [asyncio.create_task(group.ask(prompt)) for prompt in PROMPTS]
    await asyncio.to_thread(group.serves_again, "2", epoch)
    assert {group.judge(await answer) for answer in asked} <= {"1", "2"}
    assert group.judge(await group.ask(PROMPTS[0])) == "2"


@pytest.mark.parametrize("victim", ["rank", "stage", "leader"])
async def test_what_dies_after_the_commit_comes_back_on_the_new_weights(group: Reloaded, victim: str) -> None:
    await asyncio.to_thread(group.serve, "2")
    document = group.deployment.state(0)
    stage = document.stages[-1].stage if victim != "leader" else 0
    pid = group.rank_pid(stage)
    os.kill(pid if victim == "rank" else parent_of(pid), signal.SIGKILL)
    await asyncio.to_thread(group.serves_again, "2", document.epoch)
    assert group.judge(await group.ask(PROMPTS[1])) == "2"


async def test_of_two_wishes_the_later_one_wins(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    group.wish("2")
    await asyncio.to_thread(group.serve, "1")
    group.wish("1")
    await asyncio.to_thread(group.serve, "2")
    assert group.judge(await group.ask(PROMPTS[2])) == "2"


async def test_a_wish_during_a_recovery_is_fulfilled_after_it(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    epoch = group.deployment.state(0).epoch
    os.kill(group.rank_pid(0), signal.SIGKILL)
    await asyncio.to_thread(group.serve, "2")
    await asyncio.to_thread(group.serves_again, "2", epoch)
    assert group.judge(await group.ask(PROMPTS[3])) == "2"


async def test_restart_goes_on_at_once_under_the_new_weights_and_names_both(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    answer = Answer()
    asked = asyncio.create_task(group.ask(PROMPTS[4], max_tokens=1900, answer=answer))
    await _begun(asked, answer)
    group.wish("2", "restart")
    await asked
    assert set(answer.named) == {"1", "1+2"}
    _judge_parts(group, answer)


async def test_a_stream_that_was_carried_over_is_resumed_by_the_same_weights_after_a_loss(group: Reloaded) -> None:
    await asyncio.to_thread(group.serve, "1")
    epoch, victim = group.deployment.state(0).epoch, group.rank_pid(0)
    answer = Answer()
    asked = asyncio.create_task(group.ask(PROMPTS[5], max_tokens=1900, answer=answer))
    await _begun(asked, answer)
    group.wish("2", "restart")
    async with asyncio.timeout(RECOVER_LIMIT_S):
        while "1+2" not in answer.named and not asked.done():
            await asyncio.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    await asked
    assert list(dict.fromkeys(answer.named)) in (["1", "1+2", "2"], ["1", "1+2"])  # the latter: it had ended already
    _judge_parts(group, answer)
    await asyncio.to_thread(group.serves_again, "2", epoch)


async def _begun(asked: "asyncio.Task[Answer]", answer: Answer) -> None:
    async with asyncio.timeout(RECOVER_LIMIT_S):
        while not answer.ids:
            assert not asked.done(), await asked
            await asyncio.sleep(0.01)


def _stages_or_did(group: Reloaded, revision: str) -> bool:
    document = group.deployment.state(0)
    return document.reload.phase == "Staging" or document.model_revision == revision


def _judge_parts(group: Reloaded, answer: Answer) -> None:
    """Each part of an answer by the weights that it names last."""
    seam = answer.named.index("1+2")
    for start, end, revision in ((0, seam, "1"), (seam, len(answer.ids), "2")):
        oracle = Oracle(group.references[revision])
        oracle.judge(answer.prompt_ids + answer.ids[:start], answer.ids[start:end])
        oracle.verdict.check()
