"""A kubelet on a run directory of its own, and ways to wait for what must come to pass."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bireme.names import Env
from bireme_operator.local.addresses import Addresses
from bireme_operator.local.clock import steady_clock
from bireme_operator.local.kubelet import Kubelet, Pod
from bireme_operator.local.rundir import RunDir
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.desired import RecoveryPolicy

STAGE = Path(__file__).with_name("scripted_stage.py")
COMMAND = (sys.executable, str(STAGE))


@dataclass
class Ground:
    """A kubelet with its surroundings. ``until`` waits for a condition, woken by every change."""

    kubelet: Kubelet
    rundir: RunDir
    news: asyncio.Event

    def create(self, script: str, name: str = "pod", stage: int = 0, **environment: str) -> Pod:
        made = CreatePod(name, 0, stage, 1, "rev1", "model1", {})
        self.kubelet.create(made, {"SCRIPT": script, **environment})
        pod = self.kubelet.get(name)
        assert pod is not None
        return pod

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.news.clear()
                if holds():
                    return
                # Files that a process writes bring no news, so look now and then as well.
                try:
                    await asyncio.wait_for(self.news.wait(), 0.02)
                except TimeoutError:
                    continue


@pytest.fixture
def rundir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    root = tmp_path_factory.mktemp("r")
    monkeypatch.setenv(Env.RUN_DIR, str(root))
    return RunDir(root / "demo")


@pytest.fixture
async def ground(rundir: RunDir) -> AsyncIterator[Ground]:
    news = asyncio.Event()
    rundir.open()
    kubelet = Kubelet(
        COMMAND,
        policy=RecoveryPolicy(budget=6, window_s=3600, initial_s=0.2, longest_s=300),
        rundir=rundir,
        addresses=Addresses([8001]),
        clock=steady_clock(),
        changed=news.set,
    )
    ground = Ground(kubelet, rundir, news)
    yield ground
    kubelet.kill_all()
    await ground.until(lambda: not kubelet.pods)
    rundir.close()
