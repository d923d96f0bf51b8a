"""Build a real control plane from the Go module proxy: ``python -m tests.controlplane.build [--bin DIR]``.

No registry and no release archive is needed, and nothing is installed: programs go to a cache outside the checkout,
each appears by one rename, and a second run finds them. Programs that `KUBEBUILDER_ASSETS` (setup-envtest) has are
taken from there instead.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bireme.names import Env
from tests.controlplane.locks import Say, locked
from tests.controlplane.programs import CONTROL_PLANE, KUBERNETES, Program
from tests.controlplane.toolchain import CannotBuild, find_go

ASSETS: Final = "KUBEBUILDER_ASSETS"


class BuildFailed(Exception):
    """The compiler refused sources that are pinned: a fault of our module files, so no reason to skip a test."""


def say_on_stderr(line: str) -> None:
    print(f"[controlplane] {line}", file=sys.stderr, flush=True)


def default_cache() -> Path:
    """Return where the programs are kept, beside Bireme's other caches."""
    root = os.environ.get(Env.CACHE_DIR)
    return (Path(root) if root else Path.home() / ".cache" / "bireme") / "controlplane"


def ensure(programs: Iterable[Program], *, cache: Path | None = None, say: Say = say_on_stderr) -> dict[Program, Path]:
    """Return the path of each program, built now if it is nowhere yet.

    Raises:
        CannotBuild: there is no Go and none can be fetched, the sources can't be fetched, or the programs in
            `KUBEBUILDER_ASSETS` are of another release.
        BuildFailed: the sources are here and do not compile.
    """
    cache = cache or default_cache()
    assets = os.environ.get(ASSETS)
    return {program: _given(program, assets) or _built(program, cache, say) for program in programs}


def _given(program: Program, assets: str | None) -> Path | None:
    path = Path(assets) / program if assets else None
    if path is None or not path.is_file():
        return None
    if program.module is KUBERNETES and program is not Program.KUBECTL:
        _check_release(path)
    return path


def _check_release(path: Path) -> None:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    wanted = KUBERNETES.version.rpartition(".")[0]
    if not said.startswith(f"Kubernetes {wanted}."):
        raise CannotBuild(f"{ASSETS} has a {path.name} that says {said!r}; give one of {wanted}, or unset {ASSETS}")


def _built(program: Program, cache: Path, say: Say) -> Path:
    target = cache / program.module.key / program
    if target.is_file():  # it appears by one rename, so it is complete
        return target
    with locked(cache / ".lock", say):
        if not target.is_file():
            _build(program, target, cache, say)
    return target


def _build(program: Program, target: Path, cache: Path, say: Say) -> None:
    go = find_go(program.module, cache, say)
    say(f"{program} {program.module.version}: fetching sources")
    fetched = _go([go, "list", "-deps", "-f", "{{/* nothing */}}", program.package], program)
    if fetched.returncode != 0:
        raise CannotBuild(f"the sources of {program} can't be had, let Go reach a module proxy: {_last(fetched)}")
    say(f"{program} {program.module.version}: compiling (the API server takes four minutes on two cores, others less)")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{program}.partial")
    began = time.monotonic()
    flags = ["-trimpath", "-buildvcs=false", f"-ldflags={program.module.linker_flags}"]
    built = _go([go, "build", *flags, "-o", partial, program.package], program)
    if built.returncode != 0:
        raise BuildFailed(f"{program} does not compile: {built.stderr}")
    partial.rename(target)
    say(f"{program}: {target.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def _go(command: Sequence[str | Path], program: Program) -> subprocess.CompletedProcess[str]:
    settings = {"CGO_ENABLED": "0", "GOWORK": "off"}
    return subprocess.run(
        command,
        cwd=program.module.folder,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _last(result: subprocess.CompletedProcess[str]) -> str:
    return (result.stderr.strip().splitlines() or ["go said nothing"])[-1]


def _link(paths: Mapping[Program, Path], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for program, path in paths.items():
        link = directory / program
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is missing and print where each program is."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.controlplane.build", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--bin", type=Path, help="also put links to the programs into this directory")
    parser.add_argument("programs", nargs="*", type=Program, help=f"default {', '.join(CONTROL_PLANE)}")
    options = parser.parse_args(arguments)
    try:
        paths = ensure(options.programs or CONTROL_PLANE)
    except (CannotBuild, BuildFailed) as error:
        say_on_stderr(str(error))
        return 1
    if options.bin:
        _link(paths, options.bin)
    for program, path in paths.items():
        print(f"{program}\t{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
