"""The fixtures `fleet` and `kwok_nodes`, a plugin: four nodes in two racks, or hundreds with nothing behind them.

A module changes `fleet_images` or `fleet_settings` by a fixture of the same name.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.fleet.fleet import Fleet
from tests.fleet.kwok import Kwok
from tests.fleet.settings import Settings

PYTHON_IMAGE = "fleet/python:test"
WORKER_IMAGE = "bireme-worker:test"
ROUTER_IMAGE = "bireme-router:test"


@pytest.fixture
def fleet_images() -> Mapping[str, Sequence[str]]:
    """What each image runs when the pod names no command."""
    return {
        PYTHON_IMAGE: [sys.executable],
        WORKER_IMAGE: [sys.executable, "-m", "bireme_worker.supervisor.main"],
        ROUTER_IMAGE: [sys.executable, "-m", "bireme_router.main"],
    }


@pytest.fixture
def fleet_settings(fleet_images: Mapping[str, Sequence[str]], tmp_path: Path) -> Iterator[Settings]:
    """How the nodes behave."""
    root = Path(tempfile.mkdtemp(prefix="fleet-"))
    logs = tmp_path / "pods"
    logs.mkdir()
    yield Settings(root, logs, fleet_images)
    shutil.rmtree(root)


@pytest.fixture
def empty_fleet(control_plane: ControlPlane, fleet_settings: Settings) -> Iterator[Fleet]:
    """A fleet without nodes, for tests that need other shapes."""
    made = Fleet(control_plane, fleet_settings)
    yield made
    made.close()


@pytest.fixture
def fleet(empty_fleet: Fleet) -> Fleet:
    """Four nodes in two racks, eight devices each."""
    empty_fleet.add_racks(racks=2, nodes=2, gpus=8)
    empty_fleet.await_open()
    return empty_fleet


@pytest.fixture
def kwok_nodes(
    control_plane: ControlPlane,
    kwok_program: Path,
    tmp_path: Path,
) -> Iterator[Callable[[int], list[str]]]:
    """Make that many light nodes, whose pods are ready at once and run nothing; returns their names."""
    kwok = Kwok(control_plane, kwok_program, tmp_path)
    yield kwok.add_nodes
    kwok.close()
