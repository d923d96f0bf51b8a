"""An operator that starts anew listens before it judges, and changes nothing that is settled."""

from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.stage_kubelet import StageKubelet


def test_an_operator_that_starts_anew_changes_nothing_that_is_settled(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator("first", lease_seconds=6)
    deployments.create(replicas=2, stages=2)
    deployments.await_condition("Ready")
    before, said = deployments.uids(), deployments.get()["status"]["groups"]
    operator.kill()
    start_operator("second", lease_seconds=6)
    eventually(lambda: deployments.lease()["spec"]["holderIdentity"] == "second")
    deployments.change(replicas=3)
    deployments.await_condition("Ready")
    assert before.items() <= deployments.uids().items(), "no pod has another uid"
    events = deployments.events("GroupLostPart")
    assert not events, "a new operator listens before it judges"
    for old, new in zip(said, deployments.get()["status"]["groups"], strict=False):
        assert (old["epoch"], old["restarts"], old["revision"]) == (new["epoch"], new["restarts"], new["revision"])
