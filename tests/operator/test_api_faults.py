"""The API server fails: it is restarted, says nothing, refuses, or does what is asked and is not heard. Nothing is made twice."""

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bireme.api.crd import COMMITTED
from bireme.names import Label
from tests.controlplane.cluster import API_ONLY, ControlPlane
from tests.controlplane.cluster import control_plane as running_control_plane
from tests.controlplane.crds import await_served
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.controlplane.proxy import ApiProxy, Asked, Fault, fair
from tests.controlplane.stopwatch import Stopwatch
from tests.operator.conftest import StartOperator
from tests.operator.deployments import Deployments, label
from tests.operator.process import OperatorProcess
from tests.operator.stage_kubelet import StageKubelet

SLOWLY = {"drainTimeoutSeconds": 60, "maxSurge": 0, "maxUnavailable": 1}


@pytest.fixture
def proxy(crd: ControlPlane) -> Iterator[ApiProxy]:
    """Between the operator and the API server."""
    with ApiProxy(crd) as proxy:
        yield proxy


class Whims:
    """One request in five fails, in one of the ways in which a busy server fails; the same ones in every run."""

    def __init__(self) -> None:
        self._random = random.Random(11)
        self.faults = 0

    def __call__(self, asked: Asked) -> Fault | None:
        # Who can't renew the Lease has to end: that is another test's.
        if "/leases/" in asked.path or asked.watch or self._random.random() > 0.2:
            return None
        self.faults += 1
        done = asked.writes and self._random.random() < 0.5
        return Fault(self._random.choice([429, 500, 503]), done=done)


def busy(kubelet: StageKubelet, deployments: Deployments) -> None:
    """Every group has a request, which ends when the group is asked to drain and not before."""
    for pod in deployments.pods():
        directory = kubelet.state_dir(pod)
        requests = directory / "requests"
        if "deletionTimestamp" in pod["metadata"]:
            assert not requests.exists() or requests.read_text() == "0", "a pod was ended while a request ran"
        elif (directory / "drain").exists():
            kubelet.load(pod, 0)
        elif (directory / "ready").exists() and label(pod, Label.STAGE) == "0" and not requests.exists():
            kubelet.load(pod, 1)


def make_all_busy(kubelet: StageKubelet, deployments: Deployments) -> None:
    """Give every group its request, before any of them may be asked to drain: none is ended as idle and gets one then."""

    def all_busy() -> bool:
        busy(kubelet, deployments)
        leaders = [pod for pod in deployments.pods() if label(pod, Label.STAGE) == "0"]
        return all((kubelet.state_dir(pod) / "requests").exists() for pod in leaders)

    eventually(all_busy)


def serving(deployments: Deployments, at_least: int) -> bool:
    """Whether all is updated and ready; meanwhile no more than allowed may be gone."""
    body = deployments.get()
    ready = {group for (group, _), pod in deployments.living().items() if is_ready(pod)}
    assert len(ready) >= at_least, "capacity is taken below what is allowed"
    status = body.get("status", {})
    current = status.get("observedGeneration") == body["metadata"]["generation"]
    wanted = body["spec"]["replicas"]
    return bool(current and status["updatedReplicas"] == status["readyReplicas"] == status["replicas"] == wanted)


def is_ready(pod: dict[str, object]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])  # type: ignore[attr-defined]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def status_is_lost(asked: Asked) -> Fault | None:
    return Fault(503) if asked.writes and "/status" in asked.path else None


def test_a_status_of_an_operator_that_lost_its_lease_comes_too_late_and_is_refused(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    old = start_operator("old", kubeconfig=proxy.kubeconfig(tmp_path))
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    proxy.judge = status_is_lost
    deployments.change(replicas=2)
    eventually(lambda: proxy.lost)
    old.kill()
    deployments.free_lease()
    start_operator("new")
    deployments.await_condition("Ready")
    late = proxy.lost[0]
    headers = {"content-type": "application/apply-patch+yaml"}
    answer = deployments.plane.api.patch(late.path, content=late.body, headers=headers)
    assert answer.status_code == 409, answer.text
    assert "the object has been modified" in answer.text
    assert_nothing_was_made_twice(kubelet, pods=2)


def assert_nothing_was_made_twice(kubelet: StageKubelet, pods: int) -> None:
    assert len(kubelet.started) == len(set(kubelet.started)) == pods


@pytest.mark.timeout(240, func_only=True)
def test_requests_that_fail_or_are_done_unheard_make_nothing_twice_and_end_nothing_early(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    proxy.judge = whims = Whims()
    start_operator(kubeconfig=proxy.kubeconfig(tmp_path))
    deployments.create(replicas=3, stages=2, rollout=SLOWLY)
    eventually(lambda: serving(deployments, 0), within=100)
    made = len(kubelet.started)
    assert_nothing_was_made_twice(kubelet, 6)
    make_all_busy(kubelet, deployments)
    deployments.change(engine={"maxRunningRequests": 3})

    def rolled() -> bool:
        busy(kubelet, deployments)
        return serving(deployments, 2)

    eventually(rolled, within=100)
    assert_nothing_was_made_twice(kubelet, made + 6)
    make_all_busy(kubelet, deployments)
    deployments.change(replicas=1)

    def gone() -> bool:
        busy(kubelet, deployments)
        return len(deployments.pods()) == 2

    eventually(gone, within=100)
    assert whims.faults > 10


def test_a_watch_that_says_nothing_any_more_is_opened_anew_and_what_it_kept_back_is_done(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Within 40 s: the server ends a watch after 30 s, and the operator one that has not ended after 35."""
    start_operator(kubeconfig=proxy.kubeconfig(tmp_path))
    deployments.create(replicas=1, stages=1)
    deployments.await_condition("Ready")
    assert proxy.stall() >= 2
    before = deployments.uids()
    deployments.change(replicas=2)
    with Stopwatch() as since:
        eventually(lambda: len(kubelet.started) == 2, within=100)
    since.assert_made(deployments.living()[1, 0], within_s=40)
    deployments.await_condition("Ready")
    assert before.items() <= deployments.uids().items()


@pytest.fixture
def own_plane(programs: dict[Program, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of the test's own, to be restarted; it has the CRD."""
    with running_control_plane(tmp_path / "plane", programs, parts=API_ONLY) as plane:
        crd = str(Path(__file__).parents[2] / COMMITTED)
        assert plane.kubectl("apply", "-f", crd).returncode == 0
        await_served(plane, "-f", crd)
        account = {"metadata": {"name": "default"}}
        plane.api.post("/api/v1/namespaces/default/serviceaccounts", json=account)
        yield plane


@pytest.mark.timeout(240, func_only=True)
def test_an_api_server_that_is_restarted_finds_everything_as_it_was_and_is_obeyed_again(
    own_plane: ControlPlane, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    with ExitStack() as running:

        def start(name: str) -> OperatorProcess:
            operator = OperatorProcess(
                own_plane.kubeconfig,
                "default",
                key,
                tmp_path / f"{name}.log",
                name=name,
                image="worker",
                cluster=False,
                lease_seconds=120,
            )
            running.callback(lambda: print(operator.log.read_text(encoding="utf-8", errors="replace")))
            running.callback(operator.kill)
            return operator

        kubelet = running.enter_context(StageKubelet(own_plane, "default", tmp_path / "pods"))
        operator = start("first")
        deployments = Deployments(own_plane, "default")
        deployments.create(replicas=2, stages=2, rollout=SLOWLY)
        deployments.await_condition("Ready")
        before = deployments.uids()
        own_plane.stop(Program.API_SERVER, number=signal.SIGKILL)
        own_plane.start(Program.API_SERVER)
        deployments.change(replicas=3)
        deployments.await_condition("Ready")
        assert operator.process.poll() is None, "it held its Lease over the restart"
        assert before.items() <= deployments.uids().items()
        assert_nothing_was_made_twice(kubelet, 6)
        assert not deployments.losses(), "nobody was lost"


@pytest.mark.timeout(360, func_only=True)  # a new operator for every step
def test_an_operator_killed_after_each_of_its_writes_makes_no_pod_twice_and_ends_none_early(
    deployments: Deployments, kubelet: StageKubelet, start_operator: StartOperator, proxy: ApiProxy, tmp_path: Path
) -> None:
    """The first operator ends with its first write, the next with its second, and so on until the rollout is through."""
    kubeconfig = proxy.kubeconfig(tmp_path)
    operator = start_operator("steady", kubeconfig=kubeconfig)
    deployments.create(replicas=2, stages=2, rollout=SLOWLY)
    deployments.await_condition("Ready")
    made = len(kubelet.started)
    writes, allowed = 0, 0

    def judge(asked: Asked) -> Fault | None:
        nonlocal writes
        # What it applies at every start is the same each time, and what it only asks for changes nothing.
        counts = asked.writes and ("/pods" in asked.path or "/status?" in asked.path) and "dryRun" not in asked.path
        writes += counts
        if counts and writes >= allowed:
            operator.process.kill()  # the write is done, the answer is not heard
            return Fault(500, done=writes == allowed)
        return None

    operator.stop()
    make_all_busy(kubelet, deployments)
    deployments.change(engine={"maxRunningRequests": 3})
    steps = 0

    def rolled() -> bool:
        nonlocal operator, steps, writes, allowed
        busy(kubelet, deployments)
        if operator.process.poll() is not None:
            steps += 1
            writes, allowed = 0, steps
            deployments.free_lease()
            operator = start_operator(f"op{steps}", kubeconfig=kubeconfig)
            proxy.judge = judge
        return serving(deployments, 1)

    eventually(rolled, within=300)
    proxy.judge = fair
    assert steps >= 4
    assert_nothing_was_made_twice(kubelet, made + 4)
