"""Real rank processes: what they survive, what ends them, and what they say."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from bireme.names import Env, Exit, Port
from bireme.wire.control import End, Ended, Failed, Load, Lost
from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids
from tests.checkpoints.tiny import save_tiny
from tests.support.generation import Request, generate
from tests.support.oracle import Oracle
from tests.support.rank_group import RankGroup, RankProcess, rank_group

VICTIM = (1, 1)
SURVIVORS = frozenset({(0, 0), (0, 1), (1, 0)})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, save_tiny(directory)


@pytest.fixture(scope="module")
def group(tiny: tuple[Path, LlamaForCausalLM], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    with rank_group(tiny[0], tmp_path_factory.mktemp("state"), tensor=2, stages=2) as one:
        one.load()
        yield one


@pytest.fixture
def single(tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> Iterator[RankGroup]:
    with rank_group(tiny[0], tmp_path) as one:
        yield one


def serve_and_judge(group: RankGroup, model: LlamaForCausalLM) -> None:
    torch.manual_seed(group.epoch)
    requests = [
        Request(torch.randint(0, 131, (length,)).tolist(), 16, sampling)
        for length in (1, 9, 40)
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=length << 33, top_k=40))
    ]
    generate(group, requests, chunk=32)
    oracle = Oracle(model)
    for request in requests:
        oracle.judge(request.prompt, request.outputs, request.sampling)
    oracle.verdict.check()


def next_epoch(group: RankGroup) -> None:
    group.form(group.epoch + 1)


def start_a_step(group: RankGroup, *, without: tuple[int, int]) -> None:
    """Send a plan to all ranks but one, so that the others wait for it inside the step."""
    plan = Plan(group.epoch, 0, (Row(1, 0, 1, pack_ids([1]), (1,), 0),), (Admit(1, Sampling()),))
    group.send_plan(plan, without=without)


def wait_until_busy(rank: RankProcess) -> None:
    deadline = time.monotonic() + 10
    while not (rank.beat is not None and rank.beat.busy):
        assert time.monotonic() < deadline, "never busy"
        time.sleep(0.02)


def test_a_group_serves_epoch_after_epoch(group: RankGroup, tiny: tuple[Path, LlamaForCausalLM]) -> None:
    for _ in range(2):
        next_epoch(group)
        serve_and_judge(group, tiny[1])
        group.end()


def replace_the_victim_and_serve(group: RankGroup, model: LlamaForCausalLM, *, as_spare: bool = False) -> None:
    pids = {place: group.ranks[place].process.pid for place in SURVIVORS}
    group.end("RankLost", without=frozenset({VICTIM}))
    group.ranks[VICTIM].kill()
    group.respawn(*VICTIM, as_spare=as_spare)
    group.load()
    next_epoch(group)
    serve_and_judge(group, model)
    group.end()
    assert {place: group.ranks[place].process.pid for place in SURVIVORS} == pids


def test_a_rank_that_finds_its_peer_killed_says_so_and_the_survivors_serve_again(
    group: RankGroup, tiny: tuple[Path, LlamaForCausalLM]
) -> None:
    next_epoch(group)
    group.ranks[VICTIM].kill()
    group.ranks[VICTIM].process.wait()
    start_a_step(group, without=VICTIM)
    lost = group.ranks[1, 0].wait_for(Lost)
    assert (lost.epoch, lost.reason) == (group.epoch, "RankLost")
    assert "stage 1 rank 1" in lost.message
    replace_the_victim_and_serve(group, tiny[1])


def test_the_end_of_the_epoch_frees_ranks_that_wait_for_a_stopped_peer(
    group: RankGroup, tiny: tuple[Path, LlamaForCausalLM]
) -> None:
    next_epoch(group)
    group.ranks[VICTIM].kill(signal.SIGSTOP)
    start_a_step(group, without=VICTIM)
    wait_until_busy(group.ranks[1, 0])
    replace_the_victim_and_serve(group, tiny[1], as_spare=True)


def test_a_rank_that_loses_the_coordinator_ends_the_epoch(group: RankGroup) -> None:
    next_epoch(group)
    group.drop_plans()
    for rank in group.ranks.values():
        assert "lost the coordinator" in rank.wait_for(Lost).message
    group.end()


def test_an_end_frees_ranks_that_are_still_forming(group: RankGroup) -> None:
    group.ranks[VICTIM].kill(signal.SIGSTOP)
    group.send_form(group.epoch + 1)
    group.end(without=frozenset({VICTIM}))
    group.ranks[VICTIM].kill(signal.SIGCONT)
    # The late one meets Form and End one after the other.
    group.ranks[VICTIM].channel.send(End(group.epoch, "test"))
    assert group.ranks[VICTIM].wait_for(Ended).epoch == group.epoch


def test_plans_of_another_epoch_are_dropped(group: RankGroup, tiny: tuple[Path, LlamaForCausalLM]) -> None:
    next_epoch(group)
    group.send_plan(Plan(group.epoch - 1, 0, (Row(1, 0, 1, pack_ids([1]), (1,), 0),), (Admit(1, Sampling()),)))
    serve_and_judge(group, tiny[1])
    group.end()


def test_beats_tell_phase_epoch_and_layers(single: RankGroup) -> None:
    single.load()
    single.form(1)
    (rank,) = single.ranks.values()
    generate(single, [Request([1, 2, 3], 8)])
    deadline = time.monotonic() + 10
    # A beat may fall between the last step's count and its end: the one that tells the rest is waited for.
    while (beat := rank.beat) is None or beat.step < 7 or beat.busy:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (beat.phase, beat.epoch, beat.alive) == ("Serving", 1, True)
    assert beat.layers == 2 * 9  # two layers, eight steps and the warm-up


def test_loading_the_same_checkpoint_again_reads_nothing(tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny[0], copy)
    with rank_group(copy, tmp_path) as group:
        blocks = group.load()
        shutil.rmtree(copy)
        assert group.load() == blocks


def test_stop_ends_a_rank_with_code_0(single: RankGroup) -> None:
    single.load()
    single.close()
    assert [rank.process.returncode for rank in single.ranks.values()] == [Exit.DRAINED]


def test_a_rank_does_not_outlive_its_supervisors_line(single: RankGroup) -> None:
    single.load()
    (rank,) = single.ranks.values()
    rank.channel.close()
    assert rank.process.wait(timeout=10) == Exit.PEER_LOST


def fails(directory: Path, state: Path, exit_code: int, message: str, **environment: str) -> None:
    with rank_group(directory, state, environment=environment) as group:
        (rank,) = group.ranks.values()
        rank.channel.send(Load(group.checkpoint))
        failed = rank.wait_for(Failed)
        assert message in failed.message
        assert failed.exit_code == exit_code
        assert rank.process.wait(timeout=10) == exit_code


def test_a_truncated_checkpoint_ends_the_rank_with_65_and_names_the_file(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny[0], copy)
    os.truncate(copy / "model.safetensors", 100_000)
    fails(copy, tmp_path, Exit.BAD_CHECKPOINT, "model.safetensors")


def test_ranks_that_do_not_divide_the_heads_end_with_64_and_the_numbers(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    message = "4 attention heads do not divide by tensor parallelism 3"
    fails(tiny[0], tmp_path, Exit.BAD_CONFIGURATION, message, **{Env.TENSOR: "3"})


def test_a_pipeline_longer_than_the_model_ends_with_64_and_the_numbers(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    message = "parallelism.pipeline is 3, but the model has 2 layers"
    fails(tiny[0], tmp_path, Exit.BAD_CONFIGURATION, message, **{Env.STAGES: "3"})


def test_a_context_longer_than_the_models_ends_with_64_and_the_numbers(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    message = "engine.maxModelLength is 300, the model was made for 256 tokens"
    fails(tiny[0], tmp_path, Exit.BAD_CONFIGURATION, message, **{Env.MAX_MODEL_LENGTH: "300"})


def test_a_taken_data_port_ends_the_rank_with_64_and_names_it(
    tiny: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    with socket.create_server(("127.99.98.97", Port.DATA)):
        message = f"can't listen on 127.99.98.97:{int(Port.DATA)}"
        fails(tiny[0], tmp_path, Exit.BAD_CONFIGURATION, message, **{Env.POD_IP: "127.99.98.97"})


def test_an_impossible_plan_ends_the_rank_with_70(single: RankGroup) -> None:
    single.load()
    single.form(1)
    single.send_plan(Plan(1, 0, (Row(5000, 0, 1, pack_ids([1]), (1,), 0),)))
    (rank,) = single.ranks.values()
    failed = rank.wait_for(Failed)
    assert (failed.reason, failed.exit_code) == ("DeviceError", Exit.INTERNAL)
    assert "names slot 5000" in failed.message
    assert rank.process.wait(timeout=10) == Exit.INTERNAL
