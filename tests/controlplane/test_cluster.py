"""The control plane of the tests starts, restarts and ends as its callers rely on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.arguments import Settings
from tests.controlplane.cluster import API_ONLY, ControlPlane, NotReady
from tests.controlplane.cluster import control_plane as running_control_plane
from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program

ROOT = Path(__file__).parents[2]

STARTER = """
import sys
from pathlib import Path
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import Program

plane = ControlPlane(Path(sys.argv[1]), {Program.ETCD: Path(sys.argv[2])})
plane.start(Program.ETCD)
print(plane.running[Program.ETCD].pid, flush=True)
sys.stdin.read()
"""


def test_a_restarted_api_server_keeps_its_objects_and_writes_the_audit_log(
    programs: dict[Program, Path], tmp_path: Path
) -> None:
    with running_control_plane(tmp_path, programs, Settings(audit=True), parts=API_ONLY) as plane:
        made = plane.api.post("/api/v1/namespaces", json={"metadata": {"name": "kept"}}).raise_for_status().json()
        plane.stop(Program.API_SERVER)
        plane.start(Program.API_SERVER)
        kept = plane.api.get("/api/v1/namespaces/kept").raise_for_status().json()
        assert kept["metadata"]["uid"] == made["metadata"]["uid"]
        assert '"name":"kept"' in plane.files.audit_log.read_text()
        children = [process.pid for process in plane.running.values()]
    assert not [pid for pid in children if _lives(pid)]


def test_the_programs_end_with_a_parent_that_is_killed(programs: dict[Program, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path), str(programs[Program.ETCD])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _lives(child)
        parent.kill()
    eventually(lambda: not _lives(child))


def _lives(pid: int) -> bool:
    """Whether the process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def test_a_program_that_ends_at_its_start_is_reported_with_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho the disk is full\nexit 3\n")
    broken.chmod(0o755)
    plane = ControlPlane(tmp_path / "plane", {Program.ETCD: broken})
    with pytest.raises(NotReady, match=r"etcd ended with 3: \nthe disk is full"):
        plane.start(Program.ETCD)
    assert plane.running == {}


def test_two_control_planes_do_not_meet(tmp_path: Path) -> None:
    first, second = (ControlPlane(tmp_path / name, {}) for name in ("first", "second"))
    assert first.url != second.url
    assert first.users.admin.token != second.users.admin.token
    assert first.kubeconfig != second.kubeconfig
    assert os.access(first.kubeconfig, os.R_OK)
