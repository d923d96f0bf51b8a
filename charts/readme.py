"""Write charts/bireme/README.md from the comments of values.yaml: ``python -m charts.readme [--check]``.

The comments are in the form of helm-docs (`# -- ` above a key), so that tool reads them too; this one needs no Go. A
comment above a mapping describes the mapping as a whole, its keys get no rows of their own.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "bireme"
README: Final = CHART / "README.md"
_MARK: Final = "# -- "
_KEY: Final = re.compile(r"^( *)([A-Za-z][\w-]*):")
_HEAD: Final = """\
# {name}

{description}.

Version {version}. Written by `make chart` from `Chart.yaml` and the comments of `values.yaml`: change those.

```
helm install bireme charts/bireme --namespace bireme-system --create-namespace
helm test bireme --namespace bireme-system
```

CRDs, upgrades, uninstalling, namespaced operation and monitoring: [docs/install.md](../../docs/install.md).

## Values

| key | default | meaning |
|---|---|---|
"""


class Undocumented(Exception):
    """A value has no comment; the message names it."""


@dataclass(frozen=True)
class Row:
    """One value: ``path`` as for `--set`."""

    path: str
    default: Any
    about: str


def comments(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the comment of every key that has one."""
    path: list[str] = []
    about: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(_MARK):
            about = [stripped.removeprefix(_MARK)]
        elif stripped.startswith("#"):
            about += [stripped.lstrip("# ")] if about else []
        elif match := _KEY.match(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if about:
                yield tuple(path), " ".join(about)
            about = []
        else:
            about = []


def rows(text: str) -> list[Row]:
    """Return what values.yaml ``text`` documents, in its order.

    Raises:
        Undocumented: a value has no comment, nor has what it is a part of.
    """
    known = dict(comments(text))
    return list(_rows(yaml.safe_load(text), (), known))


def _rows(values: dict[str, Any], parents: tuple[str, ...], known: dict[tuple[str, ...], str]) -> Iterator[Row]:
    for key, value in values.items():
        path = (*parents, key)
        if path in known:
            yield Row(".".join(path), value, known[path])
        elif isinstance(value, dict) and value:
            yield from _rows(value, path, known)
        else:
            raise Undocumented(f"write a line '{_MARK}…' above {'.'.join(path)} in values.yaml")


def render() -> str:
    """Return the page."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return _HEAD.format(**about) + "".join(
        f"| `{row.path}` | `{json.dumps(row.default)}` | {row.about.replace('|', chr(92) + '|')} |\n"
        for row in rows((CHART / "values.yaml").read_text(encoding="utf-8"))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with ``--check`` compare it."""
    parser = argparse.ArgumentParser(prog="python -m charts.readme", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page differs")
    page = render()
    if parser.parse_args(arguments).check:
        same = README.exists() and README.read_text(encoding="utf-8") == page
        sys.stdout.write("" if same else f"{README} is out of date: run `make chart`\n")
        return 0 if same else 1
    README.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
