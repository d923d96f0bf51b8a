"""The fixtures of the tier, a plugin: programs are built when they are nowhere, one control plane serves the session.

Every test that uses one of them gets the tier's marker, wherever it lies. Compiling takes minutes on a fresh machine,
so tests here are timed without their fixtures, and progress goes past pytest's capture.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bireme.api.crd import COMMITTED
from tests.controlplane.build import ensure
from tests.controlplane.cluster import API_ONLY, WHOLE, ControlPlane
from tests.controlplane.cluster import control_plane as running_control_plane
from tests.controlplane.crds import await_served
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.controlplane.toolchain import CannotBuild

_ROOT = Path(__file__).parents[2]
_TEST_SECONDS = 240
"""Only for what hangs: every wait has its own bound, and a test has several of them and starts its operators anew."""


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.controlplane)
            item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


def _ensure(request: pytest.FixtureRequest, programs: Iterable[Program]) -> dict[Program, Path]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    try:
        with capture.global_and_fixture_disabled():
            return ensure(programs)
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> dict[Program, Path]:
    """Where the programs of an API server are; setup-envtest has them all, so these tests can do without Go."""
    return _ensure(request, (*API_ONLY, Program.KUBECTL))


@pytest.fixture(scope="session")
def api_server(programs: dict[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The session's control plane with etcd and API server up; controllers run only if another test asked for them."""
    with running_control_plane(tmp_path_factory.mktemp("control-plane"), programs, parts=API_ONLY) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane(
    request: pytest.FixtureRequest, api_server: ControlPlane, programs: dict[Program, Path]
) -> ControlPlane:
    """The session's control plane, whole."""
    programs.update(_ensure(request, WHOLE))
    api_server.start(*WHOLE)
    return api_server


@pytest.fixture(scope="session")
def kwok_program(request: pytest.FixtureRequest, programs: dict[Program, Path]) -> Path:
    """Where kwok is, for whoever simulates nodes by the hundred."""
    programs.update(_ensure(request, [Program.KWOK]))
    return programs[Program.KWOK]


@pytest.fixture(scope="session")
def helm_program(request: pytest.FixtureRequest, programs: dict[Program, Path]) -> Path:
    """Where helm is, for the tests of the chart."""
    programs.update(_ensure(request, [Program.HELM]))
    return programs[Program.HELM]


@pytest.fixture(scope="session")
def crd(api_server: ControlPlane) -> ControlPlane:
    """The session's control plane with the committed CRD, applied as a user does it."""
    applied = api_server.kubectl("apply", "-f", str(_ROOT / COMMITTED))
    assert applied.returncode == 0, applied.stderr
    await_served(api_server, "-f", str(_ROOT / COMMITTED))
    return api_server


@pytest.fixture
def namespace(api_server: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, where pods may be made at once."""
    made = api_server.api.post("/api/v1/namespaces", json={"metadata": {"generateName": "test-"}})
    name = str(made.raise_for_status().json()["metadata"]["name"])
    # Pods need it, and the controller that makes it may not run, or not yet have come to it.
    account = {"metadata": {"name": "default"}}
    assert api_server.api.post(f"/api/v1/namespaces/{name}/serviceaccounts", json=account).status_code in {201, 409}
    yield name
    api_server.api.delete(f"/api/v1/namespaces/{name}").raise_for_status()
    _empty(api_server, name)


def _empty(plane: ControlPlane, namespace: str) -> None:
    """Take away what could still act in the next test: a pod that waits would be bound to its nodes.

    Nothing new comes into a namespace that ends; who empties it takes its time, or does not run at all.
    """
    plane.api.delete(f"/apis/bireme.dev/v1alpha1/namespaces/{namespace}/inferencedeployments")  # if they are known
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.delete(pods, params={"gracePeriodSeconds": "0"}).raise_for_status()
    eventually(lambda: not plane.api.get(pods).raise_for_status().json()["items"])
