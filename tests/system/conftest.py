"""One deployment of the demo's kind for each module that needs it, and the reference that judges its text."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.deployment import EXAMPLES, Deployment, running, variant
from tests.support.ports import free_port

# Every kill is charged; a soak kills more often than any group's budget allows, and would spend its time backing off.
TIRELESS = {"recovery": {"restartBudget": {"limit": 1000}, "backoff": {"maxSeconds": 1}}}


@pytest.fixture(scope="session")
def reference(smollm2_dir: Path) -> Any:
    """Transformers' SmolLM2 in fp32."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    return AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: sockets live below it."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def mounts(smollm2_dir: Path) -> dict[str, Path]:
    """Where the examples find their model."""
    return {"/models": smollm2_dir.parent}


@pytest.fixture(scope="module")
def demo(mounts: dict[str, Path]) -> Iterator[Deployment]:
    """Two groups of two stages, serving."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        file = variant(EXAMPLES / "smollm2.yaml", Path(path), TIRELESS, "smollm2")
        with running(file, Path(path), free_port(), mounts) as deployment:
            deployment.wait_serving(2)
            yield deployment
