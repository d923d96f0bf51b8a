#!/usr/bin/env python3
"""runc, for a dockerd that lacks CAP_SYS_RESOURCE: what it could not grant is not asked for, the rest is runc's.

Without that right no container can have it, no limit can be raised and no score of the kernel's memory killer lowered.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

_CAPABILITY = "CAP_SYS_RESOURCE"


def main(arguments: list[str]) -> None:
    """Rewrite the container's or the process's file in place, then become runc."""
    for verb, options, file in (("create", ("--bundle", "-b"), "config.json"), ("exec", ("--process", "-p"), "")):
        path = _value(arguments, options) if verb in arguments else None
        if path is not None:
            _rewrite(Path(path) / file if file else Path(path))
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    os.execv(runc or "runc", ["runc", *arguments])


def _value(arguments: list[str], options: tuple[str, ...]) -> str | None:
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else arguments[index + 1]
    return None


def _rewrite(path: Path) -> None:
    document = json.loads(path.read_text())
    trim(document.get("process", document))
    path.write_text(json.dumps(document))


def trim(process: dict[str, Any]) -> None:
    """Take out of an OCI process what needs the capability."""
    for names in (process.get("capabilities") or {}).values():
        names[:] = [name for name in names if name != _CAPABILITY]
    process.pop("rlimits", None)
    if (process.get("oomScoreAdj") or 0) < 0:
        del process["oomScoreAdj"]


if __name__ == "__main__":
    main(sys.argv[1:])
