"""One deployment of the demo's kind for the tests that share it, and the reference that judges its text."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.deployment import Deployment, running

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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


@pytest.fixture(scope="module")
def demo(smollm2_dir: Path) -> Iterator[Deployment]:
    """Two groups of two stages, serving."""
    with tempfile.TemporaryDirectory(prefix="bireme-") as path:
        mounts = {"/models": smollm2_dir.parent}
        with running(EXAMPLES / "smollm2.yaml", Path(path), free_port(), mounts) as deployment:
            deployment.wait_serving(2)
            yield deployment
