"""Print what parts of Bireme need, one requirement a line: ``dependencies.py operator [--without torch]``.

Run while an image is built, with nothing but Python: dependencies become a layer of their own, below the sources.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path


def dependencies(project: Path, extras: list[str], without: list[str]) -> list[str]:
    """Return the requirements of ``project`` (a pyproject.toml) with ``extras``, less the packages ``without``."""
    about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found = [*about["dependencies"], *(one for extra in extras for one in about["optional-dependencies"][extra])]
    return [one for one in dict.fromkeys(found) if re.split(r"[^A-Za-z0-9._-]", one)[0] not in without]


def main() -> int:
    """Print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("--project", type=Path, default=Path("pyproject.toml"))
    options = parser.parse_args()
    sys.stdout.write("".join(f"{one}\n" for one in dependencies(options.project, options.extras, options.without)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
