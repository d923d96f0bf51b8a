"""An operator that starts anew listens before it judges, and changes nothing that is settled."""

from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.stage_kubelet import StageKubelet


def test_an_operator_that_starts_anew_changes_nothing_that_is_settled(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator("first")
    deployments.create(replicas=2, stages=2)
    said, before = deployments.await_ready()["groups"], deployments.uids()
    operator.kill()
    deployments.free_lease()
    start_operator("second")
    eventually(lambda: deployments.lease()["spec"]["holderIdentity"] == "second")
    deployments.change(replicas=3)
    now = deployments.await_ready()["groups"]
    assert before.items() <= deployments.uids().items(), "no pod has another uid"
    assert not deployments.losses(), "a new operator listens before it judges"
    for old, new in zip(said, now, strict=False):
        assert (old["epoch"], old["restarts"], old["revision"]) == (new["epoch"], new["restarts"], new["revision"])
