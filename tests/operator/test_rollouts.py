"""Rollouts on a real control plane, by the numbers of research on other operators: T7 to T9, T11, T13 and T15."""

from typing import Any

import pytest

from bireme.names import Label
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.stage_kubelet import StageKubelet

SLOWLY = {"drainTimeoutSeconds": 5, "maxSurge": 0, "maxUnavailable": 1}


def revisions(deployments: Deployments) -> dict[int, set[str]]:
    """The revisions of each group's living pods."""
    found: dict[int, set[str]] = {}
    for (group, _), pod in deployments.living().items():
        found.setdefault(group, set()).add(label(pod, Label.REVISION))
    return found


def whole(deployments: Deployments, stages: int) -> int:
    """How many groups have all their stages ready, by the pods' own word."""
    ready: dict[int, int] = {}
    for pod in deployments.pods():
        conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])}
        if "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True":
            group = int(label(pod, Label.GROUP_INDEX))
            ready[group] = ready.get(group, 0) + 1
    return sum(count >= stages for count in ready.values())


@pytest.mark.timeout(360, func_only=True)  # a new operator for every step
def test_t7_an_operator_killed_at_every_step_of_a_rollout_never_takes_more_than_it_may(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator()
    deployments.create(replicas=2, stages=2, rollout=SLOWLY)
    deployments.await_condition("Ready")
    made = set(kubelet.started)
    deployments.change(engine={"maxRunningRequests": 3})
    steps, seen = 0, deployments.uids()

    def rolled() -> bool:
        nonlocal steps, seen, operator
        assert whole(deployments, 2) >= 1, "one group at a time"
        now = deployments.uids()
        if now != seen:
            seen, steps = now, steps + 1
            operator.kill()
            operator = start_operator()
        body = deployments.get()
        status = body["status"]
        current = status["observedGeneration"] == body["metadata"]["generation"]
        return bool(current and status["updatedReplicas"] == status["readyReplicas"] == 2)

    eventually(rolled, within=300)
    assert steps >= 3
    assert len(set(kubelet.started) - made) == 4, "no pod is made twice"
    assert len(set(map(frozenset, revisions(deployments).values()))) == 1


def test_t8_and_t11_a_held_group_comes_back_as_it_was_and_scaling_keeps_what_is_updated(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator()
    deployments.create(replicas=2, stages=2, rollout=SLOWLY | {"partition": 1})
    deployments.await_condition("Ready")
    (old,) = set.union(*revisions(deployments).values())
    deployments.change(engine={"maxRunningRequests": 3}, parallelism={"pipeline": 1})
    eventually(lambda: deployments.get()["status"].get("updatedReplicas") == 1)
    eventually(lambda: deployments.get()["status"].get("readyReplicas") == 2)
    held = next(group for group, found in revisions(deployments).items() if found == {old})
    before = deployments.uids()
    operator.kill()  # what it knows is in ControllerRevisions and status
    for (group, _), pod in deployments.living().items():
        if group == held:
            deployments.delete_pod(pod)
    start_operator()
    eventually(lambda: whole(deployments, 2) == 1)
    after = deployments.living()
    assert revisions(deployments)[held] == {old}
    assert {stage for group, stage in after if group == held} == {0, 1}
    assert after[held, 0]["metadata"]["uid"] != before[held, 0]
    updated = {place: uid for place, uid in deployments.uids().items() if place[0] != held}
    deployments.scale(3)
    eventually(lambda: deployments.get()["status"].get("readyReplicas") == 3)
    assert updated.items() <= deployments.uids().items()
    deployments.change(rollout={"partition": 0})
    deployments.await_condition("Ready")
    assert old not in set.union(*revisions(deployments).values())


def test_t9_a_bad_image_and_then_a_good_one_need_no_help_and_a_bad_one_alone_is_taken_back(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    rollout = {"drainTimeoutSeconds": 5, "progressDeadlineSeconds": 3600}
    deployments.create(replicas=2, stages=1, rollout=rollout)
    deployments.await_condition("Ready")
    kubelet.hold.set()  # an image that can't be pulled: the pod stays pending
    deployments.change(engine={"maxRunningRequests": 3})
    eventually(lambda: len(deployments.living()) == 3)
    deployments.change(engine={"maxRunningRequests": 4})
    eventually(lambda: len(set.union(*revisions(deployments).values())) == 2)
    kubelet.hold.clear()
    deployments.await_condition("Ready")
    (good,) = set.union(*revisions(deployments).values())
    kubelet.hold.set()
    deployments.change(engine={"maxRunningRequests": 5}, rollout={"progressDeadlineSeconds": 2})
    told = deployments.await_condition("Stalled")
    assert told["reason"] == "RolledBack"
    eventually(lambda: revisions(deployments).values() and set.union(*revisions(deployments).values()) == {good})
    eventually(lambda: deployments.get()["status"]["readyReplicas"] == 2)
    deployments.await_condition("Available")
    kubelet.hold.clear()
    deployments.change(engine={"maxRunningRequests": 6}, rollout={"progressDeadlineSeconds": 600})
    deployments.await_condition("Ready")


def test_t13_four_groups_that_are_gone_and_back_within_a_second_are_four_whole_groups(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=4, stages=2)
    deployments.await_condition("Ready")
    deployments.change(replicas=0)
    deployments.change(replicas=4)
    deployments.await_condition("Ready")
    eventually(lambda: len(deployments.pods()) == 8)
    assert len(deployments.living()) == 8
    deployments.change(replicas=0)
    eventually(lambda: not deployments.pods())
    deployments.change(replicas=4)
    deployments.await_condition("Ready")
    assert len(deployments.pods()) == 8, "no leftovers"


def test_t15_the_status_never_promises_more_than_there_is(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    start_operator()
    deployments.create(replicas=3, stages=1, rollout=SLOWLY)
    deployments.await_condition("Ready")
    (old,) = set.union(*revisions(deployments).values())
    deployments.change(engine={"maxRunningRequests": 3})
    crashed = False

    def promised() -> int:
        return int(deployments.get()["status"]["readyReplicas"])

    def told_truly() -> bool:
        nonlocal crashed
        body: dict[str, Any] = deployments.get()
        status = body["status"]
        serving = sum(group["state"] == "Serving" for group in status["groups"])
        ready = next(one for one in status["conditions"] if one["type"] == "Ready")
        assert status["readyReplicas"] == serving
        assert status["observedGeneration"] <= body["metadata"]["generation"]
        if status["readyReplicas"] > whole(deployments, 1):  # it is told after it happened, but it is told
            eventually(lambda: promised() <= whole(deployments, 1))
        if ready["status"] == "True":
            assert serving == status["replicas"] == 3
            done = status["observedGeneration"] == 2
            assert not done or old not in set.union(*revisions(deployments).values()), "and each is what is wanted"
            assert ready["observedGeneration"] == status["observedGeneration"]
        if status["updatedReplicas"] == 1 and not crashed:
            pods = deployments.living()
            deployments.delete_pod(pods[max(pods)])
            crashed = True
        return bool(status["observedGeneration"] == 2 and ready["status"] == "True")

    eventually(told_truly, within=60)
