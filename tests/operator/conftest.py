"""Fixtures of the operator's tests: the control plane of the session, a kubelet for the stages, operators as processes."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.faults.tiny import MODEL, make_tiny
from tests.operator.deployments import Deployments
from tests.operator.process import OperatorProcess
from tests.operator.stage_kubelet import StageKubelet

StartOperator = Callable[..., OperatorProcess]


@pytest.fixture
def deployments(crd: ControlPlane, namespace: str) -> Deployments:
    """The objects of the test's namespace."""
    return Deployments(crd, namespace)


@pytest.fixture(scope="module")
def tiny(smollm2_dir: Path) -> Iterator[Path]:
    """A checkpoint beside the real one: what lies under /tmp is each pod's own there."""
    with tempfile.TemporaryDirectory(dir=smollm2_dir.parent) as folder:
        yield make_tiny(Path(folder) / MODEL)


@pytest.fixture
def kubelet(crd: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[StageKubelet]:
    """Runs the stage pods of the namespace as processes that behave like stages."""
    with StageKubelet(crd, namespace, tmp_path / "pods") as kubelet:
        yield kubelet


@pytest.fixture
def start_operator(crd: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[StartOperator]:
    """Start an operator for the namespace; it ends with the test, whose failure shows what it said.

    One that can't renew its Lease for two thirds of ``lease_seconds`` ends, and here nothing starts it again: only
    tests in which another takes over make that short.
    """
    key = tmp_path / "master-key"
    key.write_text("k" * 40)
    with ExitStack() as running:

        def start(
            name: str = "operator",
            worker_image: str = "worker",
            kubeconfig: Path = crd.kubeconfig,
            *,
            cluster: bool = False,
            lease_seconds: int = 30,
            arguments: Sequence[str] = (),
        ) -> OperatorProcess:
            log = tmp_path / f"{name}.log"
            operator = OperatorProcess(
                kubeconfig,
                namespace,
                key,
                log,
                name=name,
                image=worker_image,
                cluster=cluster,
                lease_seconds=lease_seconds,
                arguments=arguments,
            )
            running.callback(lambda: print(log.read_text(encoding="utf-8", errors="replace")))
            running.callback(operator.kill)
            return operator

        yield start
