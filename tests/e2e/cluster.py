"""The cluster of kind-config.yaml for as long as the tests need it, from kindest/node or from a node of our own build.

Whether a registry can be reached is found out by asking for the node image. `BIREME_E2E_NODE_IMAGE` answers instead:
the name of an image, or `build`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.controlplane.programs import Program
from tests.e2e import node_image
from tests.e2e.commands import run, works
from tests.e2e.docker import image_exists
from tests.e2e.network import NETWORK
from tests.e2e.progress import say, step

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = ROOT / "kind-config.yaml"
NAME: Final = "bireme-e2e"
MODELS: Final = "/models"
GIVEN: Final = "BIREME_E2E_NODE_IMAGE"
BUILD: Final = "build"
_PULL_S: Final = 300
_RELEASED_WITH: Final = re.compile(rb"kindest/node:v[0-9.]+@sha256:[0-9a-f]{64}")
_READY: Final = "180s"
# Each kubelet sets these for the whole machine.
_SYSCTLS: Final = ("vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops")


@dataclass(frozen=True)
class Ground:
    """What the cluster is made of: programs, the folder of models, the node image."""

    programs: Mapping[Program, Path]
    kubeconfig: Path
    models: Path
    image: str

    @property
    def ours(self) -> bool:
        """Whether the nodes are of our own build, on a machine that reaches no registry."""
        return self.image.startswith("bireme-e2e/")

    @property
    def environment(self) -> dict[str, str]:
        """For kind, kubectl and helm: our programs first, our kubeconfig, our network."""
        own = Path(sys.executable).parent  # `bireme` itself
        folders = dict.fromkeys(str(folder) for folder in (*(path.parent for path in self.programs.values()), own))
        path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
        network = {"KIND_EXPERIMENTAL_DOCKER_NETWORK": NETWORK} if self.ours else {}
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig), **network}

    def kubectl(self, *words: str, timeout: float = 300) -> str:
        """Run kubectl against the cluster."""
        return run(self.programs[Program.KUBECTL], *words, timeout=timeout, env=self.environment)

    def kind(self, *words: str | Path, timeout: float = 900) -> str:
        """Run kind."""
        return run(self.programs[Program.KIND], *words, timeout=timeout, env=self.environment)


def fetched_image(kind: Path) -> str | None:
    """Return the image that ``kind`` was released with, or none where it can't be fetched."""
    found = _RELEASED_WITH.search(kind.read_bytes())
    assert found, f"{kind} names no node image"
    image = found.group().decode()
    if image_exists(image):
        return image
    with step(f"asking for {image.partition('@')[0]}"):
        return image if works("docker", "pull", "--quiet", image, timeout=_PULL_S) else None


def configuration(ground: Ground) -> dict[str, Any]:
    """Return kind-config.yaml as this machine needs it."""
    document: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    for node in document["nodes"]:
        for mount in node.get("extraMounts", ()):
            mount["hostPath"] = str(ground.models)
        node["image"] = ground.image
    if ground.ours:
        patch = {"kind": "ClusterConfiguration", "imageRepository": node_image.REPOSITORY}
        document["kubeadmConfigPatches"] = [yaml.safe_dump(patch)]
    return document


@contextmanager
def kind_cluster(ground: Ground, *, keep: bool) -> Iterator[None]:
    """Make the cluster, and delete it unless it is to be kept; the machine is then as it was."""
    try:
        if _is_there(ground):
            say("the cluster of an earlier run is there")
        else:
            _create(ground)
        yield
    finally:
        if keep:
            say(f"the cluster is kept: export KUBECONFIG={ground.kubeconfig}")
        else:
            with step("deleting the cluster"):
                ground.kind("delete", "cluster", "--name", NAME)
            _restore(ground)


def _is_there(ground: Ground) -> bool:
    """Whether the cluster was kept; its address alone says nothing, it may be another server's by now."""
    ready = (ground.programs[Program.KUBECTL], "--kubeconfig", ground.kubeconfig, "get", "--raw", "/readyz")
    return NAME in ground.kind("get", "clusters").split() and works(*ready)


def _create(ground: Ground) -> None:
    ground.kind("delete", "cluster", "--name", NAME)
    _settings_of(ground).write_text(run("sysctl", *_SYSCTLS))
    file = ground.kubeconfig.with_name("kind-config.yaml")
    file.write_text(yaml.safe_dump(configuration(ground)))
    with step("creating the cluster (kind, five nodes)"):
        ground.kind("create", "cluster", "--name", NAME, "--config", file, "--kubeconfig", ground.kubeconfig)
    with step("nodes and DNS become ready"):
        ground.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={_READY}")
        ground.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", f"--timeout={_READY}")


def load(ground: Ground, *images: str) -> None:
    """Put images of the local Docker on every worker node."""
    workers = ground.kubectl("get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "name").split()
    nodes = ",".join(worker.removeprefix("node/") for worker in workers)
    with step(f"putting {', '.join(images)} on the nodes"):
        ground.kind("load", "docker-image", *images, "--name", NAME, "--nodes", nodes)


def _settings_of(ground: Ground) -> Path:
    """Where the machine's settings are kept that the kubelets of the cluster have changed."""
    return ground.kubeconfig.with_name("sysctl.conf")


def _restore(ground: Ground) -> None:
    """Give the machine its settings back; without the right to it nothing was changed either."""
    if (kept := _settings_of(ground)).exists():
        subprocess.run(["sysctl", "--quiet", f"--load={kept}"], capture_output=True, check=False)
        kept.unlink()
