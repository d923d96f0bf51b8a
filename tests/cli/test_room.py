"""A deployment that can't fit into this machine's memory is refused with the numbers, before anything is started."""

from pathlib import Path
from typing import Any

import pytest

from bireme.api import parse
from bireme.cli.errors import Refused
from bireme.cli.room import check_room, free_bytes
from bireme_worker.checkpoints.size import least_bytes
from tests.checkpoints.tiny import save_tiny


def deployment(replicas: int = 2, **spec: Any) -> Any:
    model = {"source": {"path": "/m"}, "revision": "1"} | spec.pop("model", {})
    return parse({"metadata": {"name": "demo"}, "spec": {"replicas": replicas, "model": model, **spec}})


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, int]:
    """A checkpoint and its number of parameters."""
    model = save_tiny(tmp_path / "m")
    return tmp_path / "m", sum(value.numel() for value in model.parameters())


def test_the_least_memory_of_weights_follows_from_headers_and_format(tiny: tuple[Path, int]) -> None:
    path, parameters = tiny
    assert least_bytes(path, 4) == 4 * parameters
    assert least_bytes(path, 2) == 2 * parameters
    assert parameters // 2 <= least_bytes(path, 4, bits=4) < parameters


def test_what_fits_exactly_is_taken_and_a_byte_less_is_refused_with_the_remedy(tiny: tuple[Path, int]) -> None:
    path, parameters = tiny
    need = 2 * 4 * parameters
    check_room(deployment(), path, need)
    with pytest.raises(Refused, match=r"2 groups of .* GiB weights .* is free on this machine: lower spec\.replicas"):
        check_room(deployment(), path, need - 1)
    check_room(deployment(replicas=1), path, need - 1)
    check_room(deployment(model={"dtype": "bfloat16"}), path, need - 1)
    check_room(deployment(model={"quantization": "int8"}), path, need - 1)


def test_caches_of_all_ranks_count(tiny: tuple[Path, int]) -> None:
    path, parameters = tiny
    asked = deployment(1, parallelism={"pipeline": 2}, engine={"kvCache": {"bytes": "2Gi"}})
    with pytest.raises(Refused, match=r"and 4\.0 GiB KV cache"):
        check_room(asked, path, 4 * parameters + (4 << 30) - 1)


def test_this_machine_has_memory() -> None:
    assert free_bytes() > 0
