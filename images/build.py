"""Build the container images: ``python -m images.build [--tag TAG] [IMAGE…]``, or `make images TAG=…`.

The bases are the ordinary ones where a registry answers. Where none does, a Debian is made on this machine and the
Python packages are fetched before, so that nothing is asked for while the images are built (`images/debian.py`).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images import debian

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ("operator", "router", "worker", "worker-cuda")
USUAL: Final = ("operator", "router", "worker")
ORDINARY_BASE: Final = "python:3.13-slim-trixie"
_LOOK_S: Final = 60


class CannotBuild(Exception):
    """This machine can't build images; the message says what it lacks."""


@dataclass(frozen=True)
class Wanted:
    """What an image is made from. ``base`` empty is the one that its Dockerfile names; ``sealed`` fetches nothing."""

    image: str
    tag: str
    base: str = ""
    sealed: bool = False

    @property
    def name(self) -> str:
        return f"bireme-{self.image}:{self.tag}"

    def command(self, labels: dict[str, str]) -> list[str]:
        """Return the words that build it from the root of the repository."""
        arguments = dict(labels)
        if self.base:
            arguments |= {"BASE": self.base}
        if self.sealed:
            arguments |= {"PIP_NO_INDEX": "1"}
        told = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        network = ["--network=none"] if self.sealed else []
        return [
            "docker",
            "build",
            *network,
            *told,
            "--file",
            f"images/{self.image}/Dockerfile",
            "--tag",
            self.name,
            ".",
        ]


def version() -> str:
    """Return the version of Bireme, which is the usual tag."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def labels() -> dict[str, str]:
    """Return what an image says about its origin: the commit and its time, so that one commit gives one image."""
    found = {"VERSION": version()}
    for name, form in {"REVISION": "%H", "CREATED": "%cI"}.items():
        said = subprocess.run(["git", "log", "-1", f"--format={form}"], cwd=ROOT, capture_output=True, text=True)
        if said.returncode == 0:
            found[name] = said.stdout.strip()
    return found


def plan(images: Sequence[str], tag: str, base: str) -> list[Wanted]:
    """Decide what each image stands on; local bases and packages are made now.

    Raises:
        CannotBuild: no Docker answers.
    """
    if shutil.which("docker") is None or not _works("docker", "version"):
        raise CannotBuild("no Docker daemon answers: install Docker, start it (dockerd), or join the group `docker`")
    if base:
        return [Wanted(image, tag, base) for image in images]
    if _works("docker", "image", "inspect", ORDINARY_BASE) or _works("docker", "pull", "--quiet", ORDINARY_BASE):
        return [Wanted(image, tag) for image in images]
    print(f"[images] {ORDINARY_BASE} can't be had: a Debian is made here", flush=True)
    debian.fetch_wheels(ROOT, images)
    return [Wanted(image, tag, debian.base(image), sealed=True) for image in images]


def build(wanted: Wanted, about: dict[str, str]) -> int:
    """Build one image and return its size in bytes.

    Raises:
        CannotBuild: Docker failed; it has said why.
    """
    # The builder of old needs no plugin; the new one is used where it is.
    kit = "1" if _works("docker", "buildx", "version") else "0"
    print(f"[images] {wanted.name}", flush=True)
    if subprocess.run(wanted.command(about), cwd=ROOT, env={**os.environ, "DOCKER_BUILDKIT": kit}).returncode != 0:
        raise CannotBuild(f"docker build of {wanted.name} failed, see above")
    size = ["docker", "image", "inspect", "--format", "{{.Size}}", wanted.name]
    return int(subprocess.run(size, capture_output=True, text=True, check=True).stdout)


def list_parts(images: Sequence[str], tag: str, target: Path) -> None:
    """Write what each built image is made of to ``target``, as SPDX.

    Raises:
        CannotBuild: there is no such image, or no Docker.
    """
    target.mkdir(parents=True, exist_ok=True)
    for image in images:
        name = Wanted(image, tag).name
        command = ["docker", "run", "--interactive", "--rm", "--network=none", "--entrypoint=python3", name, "-", name]
        script = (ROOT / "images" / "sbom.py").read_text(encoding="utf-8")
        done = subprocess.run(command, input=script, capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotBuild(f"{name} can't be listed, build it first (make images): {done.stderr.strip()}")
        path = target / f"bireme-{image}.spdx.json"
        path.write_text(done.stdout, encoding="utf-8")
        print(path)


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_LOOK_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Build them and print their names and sizes."""
    parser = argparse.ArgumentParser(prog="make images", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"of {', '.join(IMAGES)}; default {', '.join(USUAL)}"
    )
    parser.add_argument("--tag", default=version(), help="(%(default)s)")
    parser.add_argument("--base", default="", metavar="I", help="base of all of them, for mirrors of your own")
    parser.add_argument("--sbom", type=Path, metavar="DIR", help="build nothing, list what built images are made of")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.images) - set(IMAGES))
    if unknown:
        parser.error(f"there is no image {', '.join(unknown)}: choose from {', '.join(IMAGES)}")
    images = options.images or USUAL
    try:
        if options.sbom:
            list_parts(images, options.tag, options.sbom)
            return 0
        sizes = {wanted.name: build(wanted, labels()) for wanted in plan(images, options.tag, options.base)}
    except (CannotBuild, debian.CannotMake) as error:
        print(f"[images] {error}", file=sys.stderr)
        return 1
    for name, size in sizes.items():
        print(f"{name}\t{size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
