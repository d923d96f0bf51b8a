"""Several operators, dying operators, operators that are away: nothing is made twice, and nothing is forgotten."""

import signal
from collections import Counter

from bireme.names import Label
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.stage_kubelet import StageKubelet

LEASE_S = 12
"""Who can't renew it for two thirds of that ends: longer than a busy machine stands still."""


def test_two_operators_act_as_one_and_the_second_takes_over(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, control_plane: ControlPlane
) -> None:
    operators = [start_operator(name, lease_seconds=LEASE_S) for name in ("first", "second")]
    deployments.create(replicas=3, stages=2)
    deployments.await_condition("Ready")
    assert len(kubelet.started) == 6
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{deployments.namespace}/leases/bireme-operator"
    holder = control_plane.api.get(lease).json()["spec"]["holderIdentity"]
    operators[["first", "second"].index(holder)].kill()
    deployments.change(replicas=4)
    deployments.await_condition("Ready")
    assert len(kubelet.started) == 8


def test_a_holder_that_slept_past_its_lease_writes_nothing_more(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    sleeper = start_operator("sleeper", lease_seconds=LEASE_S)
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    sleeper.process.send_signal(signal.SIGSTOP)
    start_operator("second", lease_seconds=LEASE_S)
    deployments.change(replicas=3)
    deployments.await_condition("Ready")
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.process.wait(timeout=60) == 75
    assert len(kubelet.started) == 3


def test_an_operator_that_is_killed_again_and_again_makes_no_pod_twice(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    deployments.create(replicas=4, stages=2)
    made = 0
    while made < 8:
        operator = start_operator()

        def more(than: int = made) -> bool:
            return len(deployments.pods()) > than

        eventually(more)
        operator.kill()
        made = len(deployments.pods())
    start_operator()
    deployments.await_condition("Ready")
    names = Counter((label(pod, Label.GROUP_INDEX), label(pod, Label.STAGE)) for pod in deployments.pods())
    assert set(names.values()) == {1}
    assert len(kubelet.started) == len(set(kubelet.started)) == 8


def test_a_stage_that_was_lost_while_no_operator_ran_is_made_anew(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator()
    deployments.create(replicas=1, stages=2)
    deployments.await_condition("Ready")
    eventually(lambda: deployments.get()["status"]["groups"][0]["state"] == "Serving")
    operator.kill()
    before = deployments.living()
    deployments.delete_pod(before[0, 0])
    start_operator()
    eventually(lambda: len(kubelet.started) == 3)
    deployments.await_condition("Ready")
    after = deployments.living()
    assert label(after[0, 0], Label.INCARNATION) == "2"
    assert after[0, 1]["metadata"]["uid"] == before[0, 1]["metadata"]["uid"]
