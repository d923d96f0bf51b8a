"""The runner's promises: nothing is read from the device in a step, nothing moves, nobody spoils another's blocks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from bireme.wire.plan import Admit, Plan, Row, Sampling, pack_ids, unpack_ids
from bireme_worker.checkpoints.config import ModelConfig
from bireme_worker.models.kv_cache import KVCache
from bireme_worker.models.progress import Progress
from bireme_worker.models.registry import build
from bireme_worker.models.shard import Shard
from bireme_worker.models.stages import stage_layers
from bireme_worker.parallel.communicator import SoloCommunicator
from bireme_worker.parallel.errors import EpochEnded
from bireme_worker.rank.errors import BadPlan
from bireme_worker.rank.inputs import Inputs
from bireme_worker.rank.loading import load_runner
from bireme_worker.rank.runner import Runner
from bireme_worker.rank.slots import Slots
from tests.checkpoints.tiny import TINY, save_tiny
from tests.rank.conftest import MakeGate
from tests.support.generation import Request, generate
from tests.support.rank_threads import identity, threaded_ranks

CPU = torch.device("cpu")
EVERYTHING = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    min_p=0.1,
    repetition_penalty=1.1,
    frequency_penalty=1.0,
    logit_bias={1: 1.0},
    logprobs=3,
    min_tokens=4,
    stop_ids=(2,),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny(directory)
    return directory


@pytest.fixture
def runner(tiny: Path, make_gate: MakeGate) -> Runner:
    pod = identity(tiny, max_running_requests=8, max_batched_tokens=64)
    one = load_runner(pod, 0, pod.checkpoint, Progress())
    one.begin(SoloCommunicator(make_gate(1)))
    return one


@pytest.fixture
def fake_runner(make_gate: MakeGate) -> Iterator[Runner]:
    config = ModelConfig.parse({**TINY, "architectures": ["LlamaForCausalLM"]})
    with FakeTensorMode():
        model = build(config, stage_layers(config, 0, 1), Shard(0, 1), torch.float32)
        for weight in model.weights():
            weight.tensor = torch.empty(weight.tensor.shape)
        cache = KVCache(layers=2, blocks=20, heads=2, head_dim=16, dtype=torch.float32, device=CPU)
        slots = Slots(9, 256, 20, model.vocabulary, CPU)
        one = Runner(model, cache, slots, Inputs(64, 9, CPU), Progress())
        one.begin(SoloCommunicator(make_gate(1)))
        yield one


PREFILL = Plan(
    epoch=1,
    step=0,
    rows=(Row(1, 0, 5, pack_ids([1, 2, 3, 4, 5]), (1,), 0), Row(2, 0, 1, pack_ids([5]), (2,), 0)),
    admits=(Admit(1, EVERYTHING, pack_ids([1, 2, 3, 4, 5])), Admit(2, Sampling())),
)
DECODE = Plan(epoch=1, step=1, rows=(Row(1, 5, 1, b"", (), 1), Row(2, 1, 1, b"", (), 1)))


def test_a_step_with_every_kind_of_sampling_never_asks_the_device_for_a_value(fake_runner: Runner) -> None:
    fake_runner.launch(PREFILL)
    handle = fake_runner.launch(DECODE)
    assert handle.sampled is not None
    assert handle.sampled.ids.shape == (2,)


def test_only_collect_reads_from_the_device(fake_runner: Runner) -> None:
    handle = fake_runner.launch(PREFILL)
    with pytest.raises(DataDependentOutputException):
        fake_runner.collect(handle)


def test_weights_cache_slots_and_inputs_stay_where_they_are_over_epochs(runner: Runner, make_gate: MakeGate) -> None:
    def addresses() -> list[int]:
        slots = runner.slots
        return [
            *(id(weight.tensor) for weight in runner.model.weights()),  # packed ones hide their address
            runner.cache.address,
            *runner.inputs.addresses,
            slots.block_table.data_ptr(),
            slots.last_sample.data_ptr(),
        ]

    before = addresses()
    for epoch in (2, 3):
        runner.begin(SoloCommunicator(make_gate(epoch)))
        runner.warm_up(epoch)
        for plan in (PREFILL, DECODE):
            runner.collect(runner.launch(plan))
        runner.end()
    assert addresses() == before


def test_a_new_epoch_knows_no_request_of_the_last_one(runner: Runner, make_gate: MakeGate) -> None:
    runner.launch(PREFILL)
    runner.begin(SoloCommunicator(make_gate(2)))
    with pytest.raises(BadPlan, match="slot 1 computes up to position 6 with 0 blocks"):
        runner.launch(DECODE)


def test_a_step_after_the_end_of_the_epoch_says_so(runner: Runner, make_gate: MakeGate) -> None:
    gate = make_gate(2)
    runner.begin(SoloCommunicator(gate))
    gate.abort("a peer was lost")
    with pytest.raises(EpochEnded, match="a peer was lost"):
        runner.launch(PREFILL)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(9, 0, 1, pack_ids([1]), (1,), 0), "names slot 9, this rank has 9"),
        (Row(1, 0, 1, pack_ids([1]), (99_999,), 0), r"the blocks \(99999,\), this rank has"),
        (Row(1, 0, 1, pack_ids([1]), tuple(range(1, 18)), 0), "17 blocks, a context has at most 16"),
        (Row(1, 0, 17, pack_ids([1] * 17), (1,), 0), "up to position 17 with 1 blocks of 16"),
        (Row(1, 0, 65, pack_ids([1] * 65), (1, 2, 3, 4, 5), 0), "65 tokens in 1 rows, this rank has room for 64"),
    ],
)
def test_a_plan_that_does_not_fit_this_rank_is_refused(runner: Runner, row: Row, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        runner.launch(Plan(epoch=1, step=0, rows=(row,)))


def test_a_plan_without_rows_gives_an_empty_result(runner: Runner) -> None:
    result = runner.collect(runner.launch(Plan(epoch=1, step=7, rows=(), releases=(1,))))
    assert (result.step, result.ids) == (7, b"")


def test_a_request_takes_up_cached_blocks_without_computing_them_again(runner: Runner) -> None:
    prompt = list(range(40))
    whole = Plan(1, 0, (Row(1, 0, 40, pack_ids(prompt), (1, 2, 3), 0),), (Admit(1, Sampling(logprobs=0)),))
    cold = runner.collect(runner.launch(whole))
    # Blocks 1 and 2 are a cached prefix of 32 tokens; only block 4 is fresh.
    hit = Plan(1, 1, (Row(2, 32, 8, pack_ids(prompt[32:]), (1, 2, 4), 0),), (Admit(2, Sampling(logprobs=0)),))
    cached = runner.collect(runner.launch(hit))
    assert cached.ids == cold.ids
    assert cached.logprobs[0] is not None
    assert cold.logprobs[0] is not None
    assert cached.logprobs[0].chosen == pytest.approx(cold.logprobs[0].chosen, abs=1e-5)


def test_broken_values_of_one_request_do_not_reach_the_next_owner_of_its_blocks(runner: Runner) -> None:
    healthy = Plan(1, 0, (Row(1, 0, 3, pack_ids([7, 8, 9]), (1,), 0),), (Admit(1, Sampling()),))
    expected = runner.collect(runner.launch(healthy)).ids
    for layer in runner.cache.layers:
        layer.data[1].fill_(float("nan"))  # as a request whose values overflowed leaves its block
    again = runner.collect(runner.launch(healthy))
    assert again.bad == ()
    assert again.ids == expected


def test_progress_counts_layers(tiny: Path, make_gate: MakeGate) -> None:
    pod, progress = identity(tiny), Progress()
    runner = load_runner(pod, 0, pod.checkpoint, progress)
    runner.begin(SoloCommunicator(make_gate(1)))
    runner.launch(PREFILL)
    assert progress.layers == 2


def test_stage_0_keeps_up_with_ids_that_nobody_asks_it_for(tiny: Path) -> None:
    # Every step's ids come back by the plan (as after resumes), so the token connection is never needed for them.
    one = Request([1, 2, 3], 150)
    with threaded_ranks(tiny, stages=2) as ranks:
        generate(ranks, [one])
        replay = [1, 2, 3, *one.outputs]
        blocks = tuple(range(100, 112))
        ranks.send_plan(Plan(1, 0, (Row(1, 0, 3, pack_ids(replay[:3]), blocks, 0),), (Admit(1, Sampling()),)))
        for number in range(1, 150):
            ranks.send_plan(Plan(1, number, (Row(1, number + 2, 1, pack_ids([replay[number + 2]]), (), number),)))
        drawn = [unpack_ids(ranks.receive_result().ids)[0] for _ in range(150)]
    assert drawn == one.outputs


def test_only_a_step_of_plain_decode_rows_may_be_replayed(runner: Runner) -> None:
    runner.slots.admit(Admit(1, Sampling()))
    runner.slots.admit(Admit(2, Sampling(temperature=0.7)))
    runner.slots.admit(Admit(3, EVERYTHING))
    runner.slots.admit(Admit(4, Sampling(prompt_logprobs=0)))
    decode = [Row(slot, 5, 1, pack_ids([9]), (), 0) for slot in (1, 2, 3)]
    prompt = Row(1, 0, 4, pack_ids([1, 2, 3, 4]), (), 0)
    silent = Row(2, 5, 1, pack_ids([9]), (), -1)

    def plain(*rows: Row, **more: Any) -> bool:
        return runner.inputs.fill(rows, runner.slots, **more).is_plain

    assert plain(*decode[:2])
    assert not plain()
    assert not plain(decode[0], decode[2]), "filters and penalties are in no graph"
    assert not plain(decode[1], prompt)
    assert not plain(decode[0], silent)
    assert not plain(*decode[:2], masks={2: bytes(17)})
    scored = Row(4, 5, 1, pack_ids([9]), (), 0)
    assert plain(scored)
    assert not plain(scored, targets={4: pack_ids([3])}), "its prompt's score would be lost"
