"""The run directory: one `up` per name, nothing left of a run that was killed, secrets for this user only."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bireme_operator.local.errors import AlreadyRunning, PathTooLong
from bireme_operator.local.rundir import RunDir, replace_file

HOLD = """
import sys
from pathlib import Path
from bireme_operator.local.rundir import RunDir
kept = RunDir(Path(sys.argv[1])).open()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_of_the_same_name_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=f"demo runs already as process {first.pid}: stop that one"):
            RunDir(path).open()
        assert RunDir(path).holder() == first.pid
        first.kill()
    assert RunDir(path).holder() is None
    RunDir(path).open().close()


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "demo").open()
    leftover = rundir.state_dir(0, 1, 2)
    rundir.write_token(0, "ab")
    rundir.status.write_text("{}")
    os.close(rundir._lock_fd or -1)  # as the kernel does
    again = RunDir(tmp_path / "demo").open()
    assert not leftover.exists()
    assert not again.status.exists()
    assert not again.token_path(0).exists()
    again.close()


def test_a_clean_end_leaves_no_lock_and_never_two_holders(tmp_path: Path) -> None:
    first, second = RunDir(tmp_path / "demo").open(), RunDir(tmp_path / "demo")
    waiting = os.open(first.path / "lock", os.O_RDWR)  # by somebody who has not tried to hold it yet
    first.close()
    assert not (tmp_path / "demo" / "lock").exists()
    assert second.holder() is None
    second.open()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not second._is_there(waiting), "what was taken away holds nothing"
    assert second.holder() == os.getpid()
    os.close(waiting)
    second.close()


def test_status_and_logs_stay_after_the_end(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "demo").open()
    rundir.status.write_text("{}")
    rundir.log("pod").write_text("why")
    rundir.close()
    assert rundir.status.exists()
    assert rundir.log("pod").read_text() == "why"


def test_a_token_is_for_this_user_only(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "demo").open()
    mode = rundir.write_token(0, "ab").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(rundir.path.stat().st_mode) == 0o700
    rundir.close()


def test_a_directory_whose_sockets_could_have_no_path_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(PathTooLong, match=r"has \d+ characters and sockets below it allow \d+: set BIREME_RUN_DIR"):
        RunDir(tmp_path / ("x" * 100)).open()


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
