"""What the operator tells Prometheus and a kubelet's probe."""

import httpx
import pytest

from bireme.api.status import GroupStatus, GroupTimings
from bireme.names import GroupState, Metric, Reason
from bireme_operator.kube.errors import Conflict, Unavailable
from bireme_operator.kube.resources import BUDGETS, DEPLOYMENTS, NODES, PODS, Resource, resource_in
from bireme_operator.shell.metrics import OperatorMetrics
from bireme_operator.shell.probe import PortTaken, serving
from tests.controlplane.polling import eventually
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments
from tests.operator.stage_kubelet import StageKubelet

KEY = ("ns", "demo")


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics(lambda: True, lambda: 3)


def group(state: GroupState, reason: Reason = Reason.NONE, took_ms: int | None = None, index: int = 0) -> GroupStatus:
    timings = GroupTimings(total_milliseconds=took_ms, detect_milliseconds=took_ms and 500)
    return GroupStatus(index=index, state=state, reason=reason, since="2026-01-01T00:00:00Z", timings=timings)


def lines(metrics: OperatorMetrics) -> list[str]:
    return metrics.page().decode().splitlines()


def test_every_series_that_can_be_known_exists_before_anything_happens(metrics: OperatorMetrics) -> None:
    told = lines(metrics)
    assert f"{Metric.OPERATOR_LEADING} 1.0" in told
    assert f"{Metric.OPERATOR_QUEUED} 3.0" in told
    assert f"{Metric.OPERATOR_WORKING} 0.0" in told
    assert f'{Metric.OPERATOR_RECONCILES}{{result="done"}} 0.0' in told
    assert all(f'{Metric.OPERATOR_GROUPS}{{state="{state}"}} 0.0' in told for state in GroupState)


def test_a_visit_that_the_server_ended_is_told_from_one_that_a_fault_ended(metrics: OperatorMetrics) -> None:
    with metrics.reconcile():
        assert f"{Metric.OPERATOR_WORKING} 1.0" in lines(metrics)
    with pytest.raises(Unavailable), metrics.reconcile():
        raise Unavailable("HTTP 503")
    with pytest.raises(ZeroDivisionError), metrics.reconcile():
        raise ZeroDivisionError
    told = lines(metrics)
    assert all(f'{Metric.OPERATOR_RECONCILES}{{result="{how}"}} 1.0' in told for how in ("done", "retried", "failed"))
    assert f"{Metric.OPERATOR_RECONCILE_SECONDS}_count 3.0" in told
    assert f"{Metric.OPERATOR_WORKING} 0.0" in told


def test_a_recovery_counts_once_it_is_over_under_the_reason_that_was_seen_first(metrics: OperatorMetrics) -> None:
    metrics.judged(KEY, [group(GroupState.SERVING)])
    metrics.judged(KEY, [group(GroupState.RECOVERING, Reason.RANK_LOST)])
    metrics.judged(KEY, [group(GroupState.RECOVERING, Reason.LOADING)])
    assert not any("RankLost" in line for line in lines(metrics))
    metrics.judged(KEY, [group(GroupState.SERVING, took_ms=2500)])
    metrics.judged(KEY, [group(GroupState.SERVING, took_ms=2500)])
    told = lines(metrics)
    assert f'{Metric.OPERATOR_RECOVERIES}{{reason="RankLost"}} 1.0' in told
    assert f'{Metric.OPERATOR_RECOVERY_SECONDS}_sum{{reason="RankLost"}} 2.5' in told
    assert f'{Metric.OPERATOR_DETECTION_SECONDS}_sum{{reason="RankLost"}} 0.5' in told


def test_a_group_that_starts_for_the_first_time_or_is_drained_recovers_from_nothing(metrics: OperatorMetrics) -> None:
    metrics.judged(KEY, [group(GroupState.STARTING), group(GroupState.RECOVERING, Reason.STAGE_LOST, index=1)])
    metrics.judged(KEY, [group(GroupState.SERVING), group(GroupState.DRAINING, index=1)])
    metrics.judged(KEY, [group(GroupState.SERVING), group(GroupState.SERVING, index=1)])
    assert not any(line.startswith(f"{Metric.OPERATOR_RECOVERIES}{{") for line in lines(metrics))


def test_groups_are_counted_over_all_deployments_and_forgotten_with_them(metrics: OperatorMetrics) -> None:
    metrics.judged(KEY, [group(GroupState.SERVING), group(GroupState.STARTING, index=1)])
    metrics.judged(("ns", "other"), [group(GroupState.SERVING)])
    assert f'{Metric.OPERATOR_GROUPS}{{state="Serving"}} 2.0' in lines(metrics)
    metrics.forget(KEY)
    assert f'{Metric.OPERATOR_GROUPS}{{state="Serving"}} 1.0' in lines(metrics)


def test_what_is_asked_of_the_server_is_counted_by_the_words_of_rbac(metrics: OperatorMetrics) -> None:
    metrics.wrote("create", "pods")
    metrics.wrote("patch", "inferencedeployments/status")
    metrics.erred(Conflict("the object has been modified"))
    told = lines(metrics)
    assert f'{Metric.OPERATOR_WRITES}{{resource="pods",verb="create"}} 1.0' in told
    assert f'{Metric.OPERATOR_WRITES}{{resource="inferencedeployments/status",verb="patch"}} 1.0' in told
    assert f'{Metric.OPERATOR_ERRORS}{{error="Conflict"}} 1.0' in told


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "sub", "said"),
    [
        (PODS, "ns", None, None, "pods"),
        (PODS, "ns", "a", None, "pods"),
        (DEPLOYMENTS, "ns", "a", "status", "inferencedeployments/status"),
        (BUDGETS, "ns", "a", None, "poddisruptionbudgets"),
        (PODS, None, None, None, "pods"),
        (NODES, None, "namespaces", None, "nodes"),
    ],
)
def test_a_path_says_its_resource(
    resource: Resource, namespace: str | None, name: str | None, sub: str | None, said: str
) -> None:
    assert resource_in(resource.path(namespace, name, sub)) == said


async def test_probe_and_metrics_share_a_port_that_the_system_may_choose(metrics: OperatorMetrics) -> None:
    async with serving(0, lambda: {"leading": True}, metrics) as port, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/healthz")).json() == {"leading": True}
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert f"{Metric.OPERATOR_QUEUED} 3.0" in page.splitlines()
        with pytest.raises(PortTaken, match=f"--probe-port {port} can't be had"):
            async with serving(port, dict, metrics):
                pass


def test_an_operator_tells_what_it_does(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator
) -> None:
    operator = start_operator()
    deployments.create(replicas=2, stages=2)
    deployments.await_condition("Ready")
    eventually(lambda: operator.metric(str(Metric.OPERATOR_GROUPS), state="Serving") == 2)
    assert operator.metric(str(Metric.OPERATOR_LEADING)) == 1
    assert operator.metric(str(Metric.OPERATOR_WRITES), verb="create", resource="pods") == 5, "one was only tried out"
    deployments.delete_pod(deployments.living()[1, 1])
    eventually(lambda: deployments.incarnation(1, 1) == "2")
    eventually(lambda: operator.metric(str(Metric.OPERATOR_RECOVERIES), reason="StageLost") == 1)
    assert operator.metric(str(Metric.OPERATOR_RECONCILES), result="failed") == 0
    assert httpx.get(f"{operator.url}/healthz", trust_env=False, timeout=60).json()["leading"] is True
