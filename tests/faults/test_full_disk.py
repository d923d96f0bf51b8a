"""A full state directory costs a stage nothing but its memory of the last epoch, and says so in the log."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import inject
from tests.supervisor.pods import NOTHING_BY_TIME, Pods, rank

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Pods]:
    """Pods whose state directories share 256 KiB; their logs lie elsewhere, as a container's do."""
    with inject.small_disk(tmp_path / "disk", 256) as disk:
        pods = Pods(disk)
        yield pods
        pods.end()


async def test_a_group_recovers_from_a_lost_rank_while_its_disk_is_full(small: Pods, tmp_path: Path) -> None:
    group = [small.make(stage) for stage in (0, 1)]
    for pod in group:
        pod.log = tmp_path / f"{pod.stage}.log"
        pod.start(**NOTHING_BY_TIME)
    before = await group[0].until_serving()
    ballast = inject.fill(small.folder)
    os.kill(rank(before, 1, 0).pid, signal.SIGKILL)
    during = await group[0].until_serving(above=before.epoch)
    assert "free space there" in group[0].log.read_text()
    ballast.unlink()
    os.kill(rank(before, 1, 1).pid, signal.SIGKILL)
    await group[0].until_serving(above=during.epoch)
