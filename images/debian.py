"""Bases and packages for a machine that no container registry answers: Debian's own, and PyPI's wheels.

A root file system is made by debootstrap once and kept in the cache. What it is made of names it, so a change makes
another one. Needs root, as debootstrap does.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.dependencies import dependencies

_RELEASE: Final = "trixie"
_PYTHON: Final = "3.13"
_COMMON: Final = ("python3", "python3-venv", "ca-certificates")
_MORE: Final = {"worker": ("python3-torch",), "worker-cuda": ("gcc", "libc6-dev", "libpython3-dev")}
_EXTRAS: Final = {"operator": "operator", "router": "router", "worker": "worker", "worker-cuda": "worker"}
_LEFT_OUT: Final = (
    "./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*", "./var/cache/*",
    "./var/lib/apt/lists/*", "./var/log/*", "./dev/*", "./proc/*", "./sys/*", "./tmp/*",
)  # fmt: skip


class CannotMake(Exception):
    """A base or a package can't be had; the message says what is missing."""


def base(image: str) -> str:
    """Return the name of the local base of ``image``, made now if Docker has none of it."""
    packages = _MORE.get(image, ())
    mark = hashlib.sha256(" ".join((_RELEASE, *_COMMON, *packages)).encode()).hexdigest()[:8]
    name = f"bireme-base:{_RELEASE}-{mark}"
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode != 0:
        _import(_root(mark, packages), name)
    return name


def _root(mark: str, packages: Sequence[str]) -> Path:
    cache = Path(os.environ.get("BIREME_CACHE_DIR") or Path.home() / ".cache" / "bireme") / "images"
    target = cache / f"{_RELEASE}-{mark}"
    if target.is_dir():  # it appears by one rename
        return target
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise CannotMake("a local base needs debootstrap and root: apt-get install debootstrap, or give --base IMAGE")
    partial = cache / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    _say(f"debootstrap {_RELEASE}")
    _run("debootstrap", "--variant=minbase", f"--include={','.join(_COMMON)}", _RELEASE, str(partial))
    if packages:
        _say(f"apt-get install {' '.join(packages)}")
        _run("chroot", str(partial), "apt-get", "install", "--yes", "--no-install-recommends", *packages)
    partial.rename(target)
    return target


def _import(root: Path, name: str) -> None:
    _say(f"docker import {name}")
    without = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    pack = subprocess.Popen(["tar", "--numeric-owner", *without, "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
    done = subprocess.run(
        ["docker", "import", "-", name], stdin=pack.stdout, capture_output=True, text=True, check=False
    )
    if pack.wait() != 0 or done.returncode != 0:
        raise CannotMake(f"docker import {name} failed: {done.stderr.strip()}")


def fetch_wheels(root: Path, images: Sequence[str]) -> Path:
    """Fetch the wheels of ``images`` into build/wheels, for the Python of the base.

    Raises:
        CannotMake: pip could not get one.
    """
    target = root / "build" / "wheels"
    shutil.rmtree(target, ignore_errors=True)
    without = [] if "worker-cuda" in images else ["torch"]
    extras = sorted({_EXTRAS[image] for image in images})
    wanted = [*dependencies(root / "pyproject.toml", extras, without), "hatchling"]
    lock = (root / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines()
    constraints = target / "constraints.txt"
    target.mkdir(parents=True)
    constraints.write_text(
        "".join(f"{line}\n" for line in lock if not line.startswith(tuple(f"{w}=" for w in without)))
    )
    _say(f"fetching the wheels of {len(wanted)} packages and what they need")
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", f"--dest={target}",
         "--constraint", str(constraints), *_platform(), *wanted)  # fmt: skip
    return target


def _platform() -> list[str]:
    machine = os.uname().machine
    # pip takes such names literally, so every older one that a wheel may carry is said too.
    names = [f"manylinux_2_{minor}_{machine}" for minor in range(41, 4, -1)]
    names += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    platforms = [f"--platform={name}" for name in names]
    abis = [f"--abi=cp{_PYTHON.replace('.', '')}", "--abi=abi3", "--abi=none"]
    return ["--only-binary=:all:", f"--python-version={_PYTHON}", "--implementation=cp", *abis, *platforms]


def _run(*command: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    if done.returncode != 0:
        raise CannotMake(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _say(line: str) -> None:
    print(f"[images] {line}", flush=True)
