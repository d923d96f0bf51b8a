"""The images that `make images` builds, under the chart's names, and second names for rollouts and upgrades."""

import os
import subprocess
from importlib.metadata import version
from typing import Final

from tests.e2e.cluster import ROOT, Ground, load
from tests.e2e.commands import CommandFailed, run
from tests.e2e.ground import NEXT_WORKER
from tests.e2e.progress import step

TAG: Final = version("bireme")
PREVIOUS: Final = "0.0.9"
"""The version before, which has the same images."""
_PARTS: Final = ("operator", "router", "worker")
NAMES: Final = tuple(f"bireme-{part}:{TAG}" for part in _PARTS)
_SECOND: Final = {
    NEXT_WORKER: f"bireme-worker:{TAG}",
    **{f"bireme-{part}:{PREVIOUS}": f"bireme-{part}:{TAG}" for part in _PARTS},
}


def build() -> None:
    """Build all images of the chart from this checkout."""
    with step("images of operator, router and worker (make images)"):
        done = subprocess.run(["make", "images"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"make images ended with {done.returncode}:\n{done.stderr[-4000:]}")
    for second, first in _SECOND.items():
        run("docker", "tag", first, second)


def put_on(ground: Ground) -> None:
    """Load them into the nodes; the second name of an image costs nothing."""
    load(ground, *NAMES)
    load(ground, *_SECOND)
