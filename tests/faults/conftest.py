"""One group of each shape (TP=2, PP=2, 2 × 2) of a tiny random model for the tests that share it, and who judges it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.bench import Bench, Judge
from tests.faults.tiny import MODEL, SHAPES, make_tiny, tiny_deployment


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model."""
    return make_tiny(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="session")
def judge(tiny_checkpoint: Path) -> Judge:
    """The oracle over the tiny model."""
    return Judge(tiny_checkpoint)


@pytest.fixture(scope="session", params=SHAPES, ids=lambda shape: f"tp{shape[0]}-pp{shape[1]}")
def bench(request: pytest.FixtureRequest, tiny_checkpoint: Path, judge: Judge) -> Iterator[Bench]:
    """One served group; every test leaves it serving."""
    tensor, pipeline = request.param
    with tiny_deployment(tensor, pipeline, tiny_checkpoint) as deployment:
        yield Bench(deployment, tensor, pipeline, judge)
