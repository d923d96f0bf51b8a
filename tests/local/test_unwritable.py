"""A disk that is full or not ours: refused at the start with the remedy, survived later. A directory stands in its way."""

import asyncio
import errno
import io
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from bireme.cli.main import main
from bireme.cli.progress import Progress
from bireme.names import Env, Exit
from bireme.wire.routes import Routes, read_routes
from bireme_operator.local.addresses import Addresses
from bireme_operator.local.errors import RunDirUnusable
from bireme_operator.local.kubelet import Kubelet
from bireme_operator.local.router import RouterKeeper
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.status_file import StatusFile
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import RecoveryPolicy


def in_the_way_of(file: Path) -> Path:
    """What the new content of ``file`` would be written to can't be written."""
    obstacle = file.with_name(f".{file.name}.new")
    obstacle.mkdir()
    return obstacle


def test_a_run_directory_that_can_t_be_made_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirUnusable, match=rf"can't be used \(Not a directory\): set {Env.RUN_DIR} to a directory"):
        RunDir(tmp_path / "file" / "demo").open()


def test_a_run_on_a_full_disk_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(RunDirUnusable, match=rf"1\.0 MiB are free on its disk, 16 are needed\): set {Env.RUN_DIR} to"):
        RunDir(tmp_path / "demo").open()


def test_a_model_that_finds_no_room_says_where_and_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["model", "smollm2", "--cache", str(tmp_path / "file" / "models")]) == Exit.BAD_CONFIGURATION
    assert "models can't be used (Not a directory): give a directory with 540 MB free" in capsys.readouterr().err


def test_a_status_that_can_t_be_written_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    obstacle = in_the_way_of(path)
    file = StatusFile(path)
    file.offer({"a": 1}, 0.0)
    assert not path.exists()
    assert file.due is not None
    obstacle.rmdir()
    file.offer({"a": 1}, file.due)
    assert path.exists()
    assert file.due is None


async def test_routes_that_can_t_be_written_are_written_later(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    obstacle = in_the_way_of(path)
    keeper = RouterKeeper([sys.executable], path, tmp_path / "log", lambda: None, print)
    routes = Routes(1, ("m",), ())
    keeper.write(routes)
    assert not path.exists()
    obstacle.rmdir()
    keeper.write(routes)
    assert read_routes(path.read_bytes()) == routes


async def test_a_pod_that_can_t_be_made_is_no_pod_and_can_be_made_later(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "d").open()
    kubelet = Kubelet(
        [sys.executable, "-c", "pass"],
        policy=RecoveryPolicy(budget=1, window_s=1, initial_s=1, longest_s=1),
        rundir=rundir,
        addresses=Addresses([]),
        clock=asyncio.get_running_loop().time,
        changed=lambda: None,
    )
    made = CreatePod("p", 0, 0, 1, "r", "1", {})
    rundir.log("p").mkdir()
    with pytest.raises(IsADirectoryError):
        kubelet.create(made, {})
    assert kubelet.pods == ()
    rundir.log("p").rmdir()
    kubelet.create(made, {})
    pod = kubelet.get("p")
    assert pod is not None
    assert pod.child is not None
    assert await pod.child.wait() == 0
    rundir.close()


class Gone(io.StringIO):
    """What nobody can write to any more."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(errno.EPIPE, "gone")])
def test_what_is_told_to_nobody_ends_nothing(error: OSError) -> None:
    Progress(Console(file=Gone(error))).say("group 0: Serving")
