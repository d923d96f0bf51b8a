"""A Docker for the nodes: the one that runs, or one that is started for as long as the tests need it.

Where a machine has none and is Debian's kind, its packages are installed, which needs root. A dockerd that may not
raise limits (a sandbox without CAP_SYS_RESOURCE) gets a runc that asks for less, see `trimmed_runc`.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.controlplane.polling import eventually
from tests.e2e import leftovers
from tests.e2e.commands import NotHere, run, works
from tests.e2e.progress import say, step

_HERE: Final = Path(__file__).parent
_CAP_SYS_RESOURCE: Final = 24
_START_S: Final = 60


@contextmanager
def running_docker(cache: Path, *, keep: bool) -> Iterator[None]:
    """Yield while a Docker daemon answers; one that was started here ends again, unless it is to be kept.

    Raises:
        NotHere: there is no Docker, and none can be installed or started.
    """
    note = cache / "dockerd.json"
    if not works("docker", "version"):
        note.write_text(json.dumps(_start(cache / "dockerd.log")))
    try:
        yield
    finally:
        if not keep and note.exists():
            _end(**json.loads(note.read_text()))
            note.unlink()


def _start(log: Path) -> dict[str, Any]:
    """Return what `_end` must know."""
    need_packages({"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables"})
    if os.geteuid() != 0:
        raise NotHere("no Docker daemon answers: start it (sudo systemctl start docker), or add yourself to its group")
    before = {"rules": leftovers.rules(), "forwarded": leftovers.forwards()}
    with step("starting dockerd, none runs"), log.open("wb") as output:
        daemon = subprocess.Popen(["dockerd", *_runtime()], stdout=output, stderr=output, start_new_session=True)
        eventually(lambda: daemon.poll() is not None or works("docker", "version"), within=_START_S)
    if daemon.returncode is not None:
        raise NotHere(f"dockerd ended with {daemon.returncode}, its words are in {log}")
    return {"pid": daemon.pid, **before}


def _end(pid: int, rules: leftovers.Rules, *, forwarded: bool) -> None:
    """End the dockerd that an earlier or this run of ours started; its number may be another process's by now."""
    name = Path(f"/proc/{pid}/comm")
    if not name.exists() or name.read_text().strip() != "dockerd":
        return
    os.kill(pid, signal.SIGTERM)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    eventually(lambda: not name.exists(), within=_START_S)
    leftovers.take_away(rules, forwarded=forwarded)
    say("dockerd has ended, its bridge and rules are gone")


def _runtime() -> list[str]:
    if may_raise_limits():
        return []
    return [f"--add-runtime=trimmed={_HERE / 'trimmed_runc.py'}", "--default-runtime=trimmed"]


def may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)


def need_packages(wanted: dict[str, str]) -> None:
    """Install the Debian packages of programs that are missing; ``wanted`` maps programs to packages.

    Raises:
        NotHere: they are missing and this is not root on a Debian.
    """
    missing = sorted({package for program, package in wanted.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotHere(f"install {', '.join(missing)} first (on Debian: sudo apt-get install {' '.join(missing)})")
    with step(f"installing Debian's {', '.join(missing)}"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", env=quiet)
        run("apt-get", "install", "--yes", "--no-install-recommends", *missing, env=quiet)


def image_exists(name: str) -> bool:
    """Whether the daemon has the image."""
    return works("docker", "image", "inspect", name)
