"""The images that `make images` builds, under the chart's names, and a second name of the worker's for a rollout."""

import os
import subprocess
from importlib.metadata import version
from typing import Final

from tests.e2e.cluster import ROOT, Ground, load
from tests.e2e.commands import CommandFailed, run
from tests.e2e.ground import NEXT_WORKER
from tests.e2e.progress import step

TAG: Final = version("bireme")
NAMES: Final = tuple(f"bireme-{part}:{TAG}" for part in ("operator", "router", "worker"))


def build() -> None:
    """Build all images of the chart from this checkout."""
    with step("images of operator, router and worker (make images)"):
        done = subprocess.run(["make", "images"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"make images ended with {done.returncode}:\n{done.stderr[-4000:]}")
    run("docker", "tag", f"bireme-worker:{TAG}", NEXT_WORKER)


def put_on(ground: Ground) -> None:
    """Load them into the nodes; the second name of an image costs nothing."""
    load(ground, *NAMES)
    load(ground, NEXT_WORKER)
