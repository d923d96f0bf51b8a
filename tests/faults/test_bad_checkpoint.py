"""A checkpoint that went bad on the disk stops the group at its next load, in words, and not by a loop of restarts."""

import shutil
from pathlib import Path

import pytest

from tests.faults import inject
from tests.faults.parts import one, parts
from tests.faults.tiny import MODEL, tiny_deployment
from tests.support.deployment import RECOVER_LIMIT_S, Deployment, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_a_truncated_file_is_named_when_a_rank_loads_it_again(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(tiny_checkpoint, tmp_path / MODEL))
    with tiny_deployment(1, 2, checkpoint) as deployment:
        weights = checkpoint / "model.safetensors"
        half = checkpoint / "half"
        half.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        half.replace(weights)
        assert deployment.ready(0), "what is loaded serves on"
        inject.kill(one(parts(deployment), "rank", stage=1))
        until(lambda: _is_told(deployment), RECOVER_LIMIT_S, deployment.tail, deployment.process)


def _is_told(deployment: Deployment) -> bool:
    (group,) = deployment.groups()
    return "BadCheckpoint" in str(group) and "model.safetensors" in group["message"]
