"""How a supervisor ends: drained by a signal, refused for good, given up; always with the right code and a word why."""

import signal
import socket

import pytest

from bireme.names import Port
from tests.supervisor.pods import Pods, children, pids, running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_the_leader_and_ends_it_with_zero(pods: Pods, number: signal.Signals) -> None:
    leader = pods.make(0, stages=1).start()
    (leader.state_dir / "running").write_text("1")
    await leader.until(lambda document: document.ready and document.running == 1)
    leader.signal(number)
    document = await leader.until(lambda document: document.draining)
    assert (document.state, document.reason, document.running) == ("Draining", "DrainRequested", 1)
    assert (await leader.get("/readyz"))[0] == 503
    family = children(leader.pid)
    (leader.state_dir / "running").write_text("0")
    assert await leader.ended() == 0
    assert not any(running(pid) for pid in family)
    said = leader.termination()
    assert said is not None
    assert said.exit_code == 0


async def test_a_second_signal_hands_over_now(pods: Pods) -> None:
    leader = pods.make(0, stages=1).start()
    (leader.state_dir / "running").write_text("1")
    await leader.until(lambda document: document.ready and document.running == 1)
    leader.signal(signal.SIGTERM)
    await leader.until(lambda document: document.draining)
    leader.signal(signal.SIGTERM)
    assert await leader.ended() == 0


async def test_a_drain_that_never_ends_is_cut_at_its_deadline(pods: Pods) -> None:
    leader = pods.make(0, stages=1, drain_timeout_s=0).start()
    await leader.until_serving()
    leader.signal(signal.SIGTERM)
    assert await leader.ended() == 0


async def test_a_signal_to_another_stage_drains_the_group_first(pods: Pods) -> None:
    leader, other = pods.group()
    (leader.state_dir / "running").write_text("1")
    before = await leader.until(lambda document: document.ready and document.running == 1)
    other.signal(signal.SIGTERM)
    await leader.until(lambda document: document.draining)
    await other.until(lambda document: document.draining)
    assert running(other.pid)
    (leader.state_dir / "running").write_text("0")
    assert await other.ended() == 0
    document = await leader.until(lambda document: not document.draining and document.state == "Recovering")
    assert pids(document, 0) == pids(before, 0)
    pods.make(1, incarnation=2).start()
    await leader.until_serving(above=before.epoch)


async def test_a_stage_without_a_leader_ends_at_once_when_asked(pods: Pods) -> None:
    other = pods.make(1).start()
    await other.until(lambda document: pids(document, 1)[0][1] == 1)
    other.signal(signal.SIGTERM)
    assert await other.ended() == 0


@pytest.mark.parametrize(("code", "reason"), [(64, "BadConfiguration"), (65, "BadCheckpoint")])
@pytest.mark.parametrize("stage", [0, 1])
async def test_a_rank_that_is_refused_for_good_ends_the_pod_with_its_code(
    pods: Pods, code: int, reason: str, stage: int
) -> None:
    pod = pods.make(stage, model=f"refused-{code}").start()
    assert await pod.ended() == code
    said = pod.termination()
    assert said is not None
    assert (said.exit_code, said.reason) == (code, reason)
    assert f"/models/refused-{code} is 5 bytes: copy it again" in said.message
    lines = pod.log.read_text().splitlines()
    assert sum(line.startswith(f"bireme-worker: {reason}: rank ") for line in lines) == 1


async def test_a_rank_that_crashes_again_and_again_ends_the_pod_with_70(pods: Pods) -> None:
    pod = pods.make(1, model="crash").start(crashes=3)
    assert await pod.ended() == 70
    said = pod.termination()
    assert said is not None
    assert said.reason == "CrashLoop"
    assert "3 times in a row" in said.message


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_peer_away_beyond_the_limit_ends_the_pod_with_75(pods: Pods, stage: int) -> None:
    pod = pods.make(stage).start(rejoin_s=0.5)
    assert await pod.ended() == 75
    said = pod.termination()
    assert said is not None
    assert said.reason == ("StageLost" if stage == 0 else "LeaderLost")
    assert "stayed away for more than 0.5 s" in said.message


@pytest.mark.parametrize("port", [Port.ADMIN, Port.CONTROL, Port.HTTP, Port.DATA + 1])
async def test_a_port_in_use_ends_the_pod_with_64_and_a_remedy(pods: Pods, port: int) -> None:
    pod = pods.make(0)
    with socket.create_server((pod.address, port)):
        pod.start(ports_s=0.2)
        assert await pod.ended() == 64
    said = pod.termination()
    assert said is not None
    assert f"{pod.address}:{int(port)}" in said.message
    assert "end the process that holds it" in said.message
    assert said.message in pod.log.read_text()


async def test_a_missing_variable_ends_the_pod_with_64_and_its_name(pods: Pods) -> None:
    pod = pods.make(0)
    del pod.environment["BIREME_MODEL_PATH"]
    pod.start()
    assert await pod.ended() == 64
    assert "BIREME_MODEL_PATH is not set" in pod.log.read_text()
