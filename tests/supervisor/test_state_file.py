"""The stage's memory: a disk that refuses it costs the memory over a restart, not the group."""

from pathlib import Path

from bireme.wire.control import Checkpoint
from bireme_worker.supervisor.state_file import StateFile

CHECKPOINT = Checkpoint("/models/m", "1")


def test_an_epoch_that_can_t_be_written_is_known_and_the_next_is_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path, 0, 1)
    obstacle = tmp_path / "supervisor.new"
    obstacle.mkdir()
    file.record(5, CHECKPOINT)
    assert file.memory.last_epoch == 5
    assert StateFile(tmp_path, 0, 1).memory.last_epoch == 0
    obstacle.rmdir()
    file.record(6, CHECKPOINT)
    assert StateFile(tmp_path, 0, 1).memory.last_epoch == 6
