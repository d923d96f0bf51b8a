"""The kubelet stand-in with real processes: start, end, restart, wait, delete."""

import json
import os
import signal

import pytest

from bireme.names import Env
from bireme_operator.local.kubelet import Pod
from bireme_operator.plan.observed import Phase
from tests.local.conftest import Ground


def ready(pod: Pod) -> bool:
    return (pod.state_dir / "ready").exists()


def environment(pod: Pod) -> dict[str, str]:
    content: dict[str, str] = json.loads((pod.state_dir / "environment.json").read_text())
    return content


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_pod_gets_an_address_and_a_state_directory_of_its_own(ground: Ground) -> None:
    leader, member = ground.create("sleep", "leader"), ground.create("sleep", "member", stage=1)
    await ground.until(lambda: ready(leader) and ready(member))
    assert environment(leader)[Env.POD_IP] == leader.address != member.address
    assert environment(member)[Env.STATE_DIR] == str(member.state_dir)
    assert environment(member)[Env.LEADER_ADDRESS] == leader.address
    assert member.told_leader == 1


async def test_a_killed_process_is_started_again_at_once_in_the_same_place(ground: Ground) -> None:
    pod = ground.create("sleep")
    await ground.until(lambda: ready(pod))
    address, pid = pod.address, pod.pid
    os.kill(pid, signal.SIGKILL)
    await ground.until(lambda: pod.restarts == 1 and pod.phase is Phase.RUNNING)
    assert (pod.address, pod.message, pod.exit_code) == (address, "ended by SIGKILL", -9)
    assert pod.pid != pid


async def test_a_process_that_can_not_be_started_again_is_tried_until_it_can(ground: Ground) -> None:
    pod = ground.create("sleep")
    await ground.until(lambda: ready(pod))
    pod.log.unlink()
    pod.log.mkdir()
    os.kill(pod.pid, signal.SIGKILL)
    await ground.until(lambda: pod.view().phase is Phase.BACKING_OFF)
    assert "its process can't be started" in pod.message
    pod.log.rmdir()
    await ground.until(lambda: pod.view().phase is Phase.RUNNING)
    assert pod.restarts >= 2


async def test_a_process_that_keeps_ending_waits_longer_each_time(ground: Ground) -> None:
    pod = ground.create("exit 1")
    await ground.until(lambda: pod.restarts >= 3)
    _, second, third, fourth = pod.ends[:4] if len(pod.ends) > 3 else (*pod.ends[:3], pod.started_at)
    # How long a process takes is its own matter; what it waits before is the kubelet's.
    assert third - second >= 0.19
    assert fourth - third >= 0.39


async def test_a_pod_that_waits_for_its_next_start_says_so(ground: Ground) -> None:
    pod = ground.create("exit 1")
    await ground.until(lambda: pod.phase is Phase.BACKING_OFF)
    assert pod.view().deaths >= 2


@pytest.mark.parametrize("code", [0, 64, 65])
async def test_a_final_exit_is_not_followed_by_another_start(ground: Ground, code: int) -> None:
    pod = ground.create(f"exit {code}", TERMINATION="tensor 2 does not divide 9 heads")
    await ground.until(lambda: pod.phase is Phase.EXITED)
    view = pod.view()
    assert (view.exit_code, view.message, view.restarts) == (code, "tensor 2 does not divide 9 heads", 0)


async def test_without_a_termination_message_the_end_of_the_log_speaks(ground: Ground) -> None:
    pod = ground.create("exit 70")
    await ground.until(lambda: pod.exit_code is not None)
    assert pod.message == f"the last line of the log (log: {pod.log})"


async def test_a_deleted_pod_ends_in_order_and_leaves_nothing(ground: Ground) -> None:
    pod = ground.create("sleep")
    await ground.until(lambda: ready(pod))
    pid = pod.pid
    ground.kubelet.delete("pod", grace_s=30)
    assert pod.view().deleting
    await ground.until(lambda: not ground.kubelet.pods)
    assert not is_alive(pid)
    assert not pod.state_dir.exists()
    assert pod.exit_code == 0


async def test_a_pod_that_will_not_go_is_killed_after_its_grace(ground: Ground) -> None:
    pod = ground.create("stubborn")
    await ground.until(lambda: ready(pod))
    ground.kubelet.delete("pod", grace_s=0.1)
    await ground.until(lambda: not ground.kubelet.pods)
    assert pod.exit_code == -signal.SIGKILL


async def test_a_pod_that_waits_for_its_next_start_can_be_deleted(ground: Ground) -> None:
    pod = ground.create("exit 1")
    await ground.until(lambda: pod.phase is Phase.BACKING_OFF)
    ground.kubelet.delete("pod", grace_s=30)
    await ground.until(lambda: not ground.kubelet.pods)


async def test_creating_a_pod_twice_makes_one(ground: Ground) -> None:
    first = ground.create("sleep")
    assert ground.create("exit 1") is first
    assert len(ground.kubelet.pods) == 1


async def test_a_member_that_starts_again_hears_of_the_present_leader(ground: Ground) -> None:
    ground.create("sleep", "old-leader")
    member = ground.create("sleep", "member", stage=1)
    await ground.until(lambda: ready(member))
    ground.kubelet.delete("old-leader", grace_s=30)
    await ground.until(lambda: ground.kubelet.get("old-leader") is None)
    leader = ground.create("sleep", "new-leader")
    (member.state_dir / "ready").unlink()
    os.kill(member.pid, signal.SIGKILL)
    await ground.until(lambda: ready(member))
    assert environment(member)[Env.LEADER_ADDRESS] == leader.address


async def test_ctrl_c_of_the_terminal_does_not_reach_a_pod(ground: Ground) -> None:
    pod = ground.create("sleep")
    assert os.getsid(pod.pid) == pod.pid != os.getsid(0)


async def test_the_log_keeps_what_every_start_wrote(ground: Ground) -> None:
    pod = ground.create("exit 1")
    await ground.until(lambda: pod.restarts >= 2)
    assert pod.log.read_text().count("the last line of the log") >= 2
