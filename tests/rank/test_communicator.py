"""What ranks exchange, and what happens when they disagree or one is gone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bireme_worker.parallel.communicator import Communicator, SoloCommunicator
from bireme_worker.parallel.errors import EpochEnded, FrameMismatch, PeerLost
from bireme_worker.parallel.socket_communicator import SocketCommunicator
from tests.rank.conftest import MakeGate
from tests.support.communicators import linked, on_all_ranks, stage_of


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_reduce_adds_in_rank_order_so_that_every_rank_holds_the_same_bits(world: int) -> None:
    torch.manual_seed(world)
    inputs = [torch.randn(5, 7) * 10.0 ** torch.randint(-6, 6, (5, 7)) for _ in range(world)]
    expected = inputs[0].clone()
    for other in inputs[1:]:
        expected += other

    def reduce(communicator: Communicator) -> torch.Tensor:
        x = inputs[communicator.rank].clone()
        communicator.all_reduce(x)
        return x

    for result in on_all_ranks(world, reduce):
        assert torch.equal(result, expected)


def test_tensors_larger_than_any_socket_buffer_cross_each_other_without_a_deadlock() -> None:
    def reduce(communicator: Communicator) -> torch.Tensor:
        x = torch.full((6 << 20,), float(communicator.rank + 1))
        for _ in range(2):
            communicator.all_reduce(x)
        return x

    for result in on_all_ranks(3, reduce):
        assert torch.equal(result, torch.full_like(result, 18.0))


def test_sizes_and_dtypes_may_change_from_call_to_call() -> None:
    def reduce(communicator: Communicator) -> list[torch.Tensor]:
        results = []
        for size, dtype in ((3, torch.float32), (100_000, torch.float64), (3, torch.bfloat16), (3, torch.float32)):
            x = torch.full((size,), float(communicator.rank + 1), dtype=dtype)
            communicator.all_reduce(x)
            results.append(x)
        return results

    for results in on_all_ranks(2, reduce):
        assert all(torch.equal(x, torch.full_like(x, 3.0)) for x in results)


def test_all_gather_returns_every_ranks_tensor_in_rank_order() -> None:
    def gather(communicator: Communicator) -> torch.Tensor:
        return communicator.all_gather(torch.tensor([[communicator.rank, 10 * communicator.rank]]))

    for result in on_all_ranks(3, gather):
        assert result.tolist() == [[[0, 0]], [[1, 10]], [[2, 20]]]


def test_ranks_that_disagree_about_a_size_get_an_error_with_both_numbers(make_gate: MakeGate) -> None:
    ranks = stage_of([make_gate(1), make_gate(1)])
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(rank.all_reduce, torch.zeros(size)) for rank, size in zip(ranks, (8, 4), strict=True)]
    with pytest.raises(FrameMismatch, match="sent epoch 1, frame 0, 16 bytes; expected epoch 1, frame 0, 32 bytes"):
        calls[0].result()
    with pytest.raises(FrameMismatch, match="32 bytes; expected epoch 1, frame 0, 16 bytes"):
        calls[1].result()


def test_a_frame_of_another_epoch_is_refused(make_gate: MakeGate) -> None:
    near, far = linked(make_gate(7), make_gate(8))
    near.send(memoryview(b"1234"))
    with pytest.raises(FrameMismatch, match=r"sent epoch 7, .* expected epoch 8"):
        far.receive(memoryview(bytearray(4)))


def test_hidden_states_and_tokens_go_their_own_ways(make_gate: MakeGate) -> None:
    first_gate, last_gate = make_gate(1), make_gate(1)
    hidden, tokens = linked(first_gate, last_gate), linked(first_gate, last_gate)
    first = SocketCommunicator(first_gate, 0, {}, next_stage=hidden[0], tokens=tokens[0])
    last = SocketCommunicator(last_gate, 0, {}, previous_stage=hidden[1], tokens=tokens[1])
    x = torch.randn(40, 8)
    first.send_hidden(x)
    received, ids = torch.empty(40, 8), torch.empty(3, dtype=torch.int64)
    last.recv_hidden(received)
    last.send_tokens(torch.tensor([5, 6, 7]))
    first.recv_tokens(ids)
    assert torch.equal(received, x)
    assert ids.tolist() == [5, 6, 7]


def test_abort_frees_a_blocked_call_and_every_later_call_says_that_the_epoch_ended(make_gate: MakeGate) -> None:
    waiting, _ = stage_of([make_gate(1), make_gate(1)])
    failures: list[BaseException] = []
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        try:
            waiting.all_reduce(torch.zeros(4))  # the other rank never joins
        except EpochEnded as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    waiting.abort("stage 1 was lost")
    thread.join(timeout=5)
    assert [str(error) for error in failures] == ["epoch 1 has ended: stage 1 was lost"]
    with pytest.raises(EpochEnded, match="stage 1 was lost"):
        waiting.all_reduce(torch.zeros(4))
    with pytest.raises(EpochEnded):
        waiting.all_gather(torch.zeros(4))


def test_abort_frees_a_rank_in_the_middle_of_a_large_exchange(make_gate: MakeGate) -> None:
    waiting, _ = stage_of([make_gate(1), make_gate(1)])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(waiting.all_reduce, torch.zeros(8 << 20))
        threading.Timer(0.05, waiting.abort, ("enough",)).start()
        with pytest.raises(EpochEnded, match="enough"):
            call.result(timeout=10)


def test_a_peer_that_is_gone_is_named(make_gate: MakeGate) -> None:
    near, far = stage_of([make_gate(1), make_gate(1)])
    far.abort("it died")
    with pytest.raises(PeerLost, match="lost the far end"):
        near.all_reduce(torch.zeros(4))


def test_a_solo_rank_notices_the_end_of_its_epoch_too(make_gate: MakeGate) -> None:
    solo = SoloCommunicator(make_gate(3))
    x = torch.tensor([1.0, 2.0])
    solo.all_reduce(x)
    assert solo.all_gather(x).tolist() == [[1.0, 2.0]]
    solo.abort("over")
    with pytest.raises(EpochEnded, match="epoch 3 has ended: over"):
        solo.all_reduce(x)


def test_a_gate_calls_back_once_and_at_once_when_it_is_shut_already(make_gate: MakeGate) -> None:
    gate, calls = make_gate(1), []
    gate.on_abort(lambda: calls.append("first"))
    gate.abort("one")
    gate.abort("two")
    gate.on_abort(lambda: calls.append("late"))
    assert calls == ["first", "late"]
    assert gate.reason == "one"
