"""What all tests share: the one real model, converted once per machine, and hypothesis without a stopwatch."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bireme_worker.checkpoints.packaged import ensure_smollm2

if not Path("/dev/nvidiactl").exists():
    # Kernels run in Triton's interpreter where there is no GPU. Read when Triton is imported, which torch may do early.
    os.environ["TRITON_INTERPRET"] = "1"

# Fixtures of the control-plane tier are for tests in any folder.
pytest_plugins = ["tests.controlplane.fixtures", "tests.fleet.fixtures"]

# A busy machine is no failure: no example is timed, nor how long drawing it takes. The same examples every time: a new
# one is looked for on purpose (BIREME_RANDOM_EXAMPLES=1), never met by whoever changes something else.
settings.register_profile(
    "bireme",
    deadline=None,
    derandomize="BIREME_RANDOM_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bireme")


def pytest_configure() -> None:
    """Say that no event loop is set: pytest-asyncio would otherwise make one to restore and never close it."""
    asyncio.set_event_loop(None)
    # No test meets the cluster of whoever runs it; those about clusters name their own.
    os.environ["KUBECONFIG"] = os.devnull


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, fp32."""
    cache = os.environ.get("BIREME_CACHE_DIR")
    return ensure_smollm2(Path(cache) if cache else Path.home() / ".cache" / "bireme")
