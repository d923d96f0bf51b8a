"""Lays out what a machine without a package index needs to measure, so that a call there is one line.

The folder holds the sources, the metadata that an installed `bireme` has (without it `bireme up` ends at once), the
wheels of a directory, and `run.sh`. That installs the wheels beside, proves that all of a deployment's programs can be
imported, naming what is missing, and runs the driver with its own arguments; `run.sh MODULE …` runs another module.

    python -m benchmarks.gpu.snapshot --to DIRECTORY --wheels DIRECTORY
    bash DIRECTORY/run.sh --cases A11,A3h,A12 --limit-s 540 --logs LOGS
    bash DIRECTORY/run.sh benchmarks.gpu.tilings --seconds 120
"""

import argparse
import importlib
import shutil
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
FOLDERS: Final = ("bireme", "operator", "router", "worker", "benchmarks", "tests", "examples")
PROGRAMS: Final = (
    "bireme.cli.main",
    "bireme.cli.up",
    "bireme.cli.profile",
    "bireme_operator.local.session",
    "bireme_router.main",
    "bireme_worker.supervisor.main",
    "bireme_worker.coordinator.main",
    "bireme_worker.http.main",
    "bireme_worker.rank.main",
    "bireme_worker.profiling.digest",
    "benchmarks.gpu.jobs_served",
    "benchmarks.gpu.jobs_kill",
)
"""Entries of all processes that a measured deployment has."""
_RUN: Final = """\
#!/usr/bin/env bash
# Installs the wheels, proves that everything can be imported, runs the driver (or the module that comes first).
set -euo pipefail
cd "$(dirname "$0")"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
if compgen -G "wheels/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" wheels/*.whl
fi
export PYTHONPATH="$site:$PWD:$PWD/worker:$PWD/router:$PWD/operator" PYTHONUNBUFFERED=1
python3 -m benchmarks.gpu.snapshot --check
module=benchmarks.gpu.suite
if [[ "${1:--}" != -* ]]; then module="$1"; shift; fi
python3 -m "$module" "$@"
"""


def lay_out(to: Path, wheels: Path | None) -> None:
    """Write the folder anew; what lay there goes, if it is one of these folders."""
    if to.exists():
        if any(to.iterdir()) and not (to / "run.sh").exists():
            sys.exit(f"{to} holds something else: name an empty directory")
        shutil.rmtree(to)
    to.mkdir(parents=True)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", to)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    described = to / f"{project['name']}-{project['version']}.dist-info"
    described.mkdir()
    text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (described / "METADATA").write_text(text)
    if wheels is not None:
        shutil.copytree(wheels, to / "wheels")
    (to / "run.sh").write_text(_RUN)


def check() -> list[str]:
    """What cannot be imported, and why."""
    troubles = []
    for name in ("", *PROGRAMS):
        try:
            importlib.import_module(name) if name else version("bireme")
        except ImportError as error:  # a distribution without metadata is one too
            troubles.append(f"{name or 'bireme'}: {error}")
    return troubles


def main() -> int:
    """Lay out, or check what was laid out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--wheels", type=Path, help="what the machine has not, for its Python")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.to is not None:
        lay_out(options.to, options.wheels)
    troubles = check() if options.check else []
    print("\n".join(troubles), file=sys.stderr, end="\n" if troubles else "")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
