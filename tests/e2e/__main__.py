"""`make e2e`: from nothing to a cluster of five nodes with Bireme on it, through all tests, and back to nothing.

Every long step says when it begins and how long it took. What is made on the way (programs, the node image, a Debian)
stays in the cache for the next run; the cluster, its network and a dockerd that was started for it do not.
"""

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bireme_worker.checkpoints.packaged import ensure_smollm2
from tests.controlplane.build import BuildFailed, default_cache, ensure
from tests.controlplane.programs import Program
from tests.controlplane.toolchain import CannotBuild
from tests.e2e import images
from tests.e2e.cluster import BUILD, GIVEN, ROOT, Ground, fetched_image, kind_cluster
from tests.e2e.commands import CommandFailed, NotHere
from tests.e2e.docker import need_packages, running_docker
from tests.e2e.ground import environment
from tests.e2e.network import closed_network
from tests.e2e.node_image import PROGRAMS as NODE_PROGRAMS
from tests.e2e.node_image import node_image
from tests.e2e.progress import say, step

_TOOLS: Final = (Program.KIND, Program.KUBECTL, Program.HELM)


def main() -> int:
    """Run the tests on a cluster made for them; the exit code is pytest's, or 1 where there can be no cluster."""
    about = "Everything else is an argument for pytest (make e2e CASES=… ARGS=…)."
    parser = argparse.ArgumentParser(prog="make e2e", description=(__doc__ or "").splitlines()[0], epilog=about)
    parser.add_argument("--keep", action="store_true", help="keep the cluster for the next run (make e2e KEEP=1)")
    options, arguments = parser.parse_known_args()
    cache = default_cache().parent / "e2e"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        return _run(cache, keep=options.keep, arguments=arguments)
    except (NotHere, CannotBuild, BuildFailed, CommandFailed) as error:
        say(str(error))
        return 1


def _run(cache: Path, *, keep: bool, arguments: list[str]) -> int:
    with ExitStack() as stack:
        stack.enter_context(running_docker(cache, keep=keep))
        ground = _ground(cache)
        if ground.ours:
            stack.enter_context(closed_network(keep=keep))
        images.build()
        stack.enter_context(kind_cluster(ground, keep=keep))
        images.put_on(ground)
        return _pytest(ground, arguments)


def _ground(cache: Path) -> Ground:
    with step("programs"):
        programs = ensure(_TOOLS)
    with step("weights of the model"):
        models = ensure_smollm2(cache.parent).parent
    given = os.environ.get(GIVEN, "")
    image = given if given not in {"", BUILD} else None if given else fetched_image(programs[Program.KIND])
    if image is None:
        need_packages({"debootstrap": "debootstrap", "gcc": "gcc"})  # for nodes, and for the images of `make images`
        with step("programs of a node: the first time, this takes ten minutes and more"):
            built = ensure(NODE_PROGRAMS)
        image = node_image(built, cache)
    return Ground(programs, cache / "kubeconfig", models, image)


def _pytest(ground: Ground, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-m", "e2e", "tests/e2e", *arguments]
    told = {**ground.environment, **environment(str(ground.kubeconfig))}
    return subprocess.run(command, cwd=ROOT, env=told, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
