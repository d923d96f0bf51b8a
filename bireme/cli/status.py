"""Show what a deployment on this machine does: conditions, groups with state and reason, pods with pid and address.

The exit code is 1 when `bireme up` of that deployment does not run any more; what is shown is then the last word.

Examples:
  bireme status                    the deployment that is up
  bireme status smollm2 --watch    again at every change
  bireme status smollm2 -o json    the object, as kubectl would give it, with pids and logs under "local"
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bireme.cli.errors import Refused
from bireme_operator.local.rundir import RunDir, run_root

NOT_RUNNING = 1
_POLL_S = 0.2
_WIDTH_OF_FILES = 220


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme status`."""
    parser.add_argument("name", nargs="?", help="name of the deployment; may be left out when there is only one")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="(%(default)s)")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again at every change, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 1 when the deployment is not up."""
    try:
        rundir = find(arguments.name)
        return _watch(rundir, arguments.output) if arguments.watch else _show(rundir, arguments.output)
    except Refused as error:
        print(f"bireme status: {error}", file=sys.stderr)
        return error.exit_code


def find(name: str | None) -> RunDir:
    """Return the run directory of that deployment, or of the only one.

    Raises:
        Refused: there is none, or more than one.
    """
    root = run_root()
    known = sorted(path.parent for path in root.glob("*/status.json"))
    running = [path for path in known if RunDir(path).holder()]
    chosen = [path for path in known if path.name == name] if name else running or known
    if len(chosen) > 1:
        raise Refused(f"name one of {', '.join(path.name for path in chosen)}")
    if not chosen:
        what = f"no deployment named {name}" if name else "no deployment"
        others = f", only {', '.join(path.name for path in known)}" if known else ""
        raise Refused(f"{what} has been up on this machine{others} (looked in {root})", NOT_RUNNING)
    return RunDir(chosen[0])


def _show(rundir: RunDir, output: str) -> int:
    content = read(rundir.status)
    print(_rendered(content, output))
    if rundir.holder() is None:
        print(f"{rundir.path.name} is not up any more: this is its last word", file=sys.stderr)
        return NOT_RUNNING
    return 0


def _watch(rundir: RunDir, output: str) -> int:
    seen = None
    while True:
        mark = _mark(rundir.status)
        if mark != seen:
            seen = mark
            code = _show(rundir, output)
            if code != 0:
                return code
        elif rundir.holder() is None:
            return _show(rundir, output)
        time.sleep(_POLL_S)


def _mark(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def read(path: Path) -> dict[str, Any]:
    """Return the object with its status.

    Raises:
        Refused: `up` has not written it yet.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Refused(f"{path} is not there yet: try again in a moment", NOT_RUNNING) from None
    return content


def _rendered(content: dict[str, Any], output: str) -> str:
    if output == "json":
        return json.dumps(content, indent=2)
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(content, sort_keys=False)).rstrip()
    return _tables(content)


def _tables(content: dict[str, Any]) -> str:
    status, local = content["status"], content["local"]
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    with console.capture() as captured:
        name = content["metadata"]["name"]
        console.print(
            f"{name}  {status['readyReplicas']} of {content['spec']['replicas']} groups serve  {local['endpoint']}",
            highlight=False,
        )
        console.print()
        console.print(
            _table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), map(_condition, status["conditions"]))
        )
        console.print()
        columns = ("GROUP", "STATE", "REASON", "MODEL", "EPOCH", "RESTARTS", "SINCE", "MESSAGE")
        console.print(_table(columns, map(_group, status["groups"])))
        console.print()
        heads = ("POD", "STAGE", "PHASE", "PID", "ADDRESS", "RESTARTS", "LOG")
        console.print(_table(heads, map(_pod, local["pods"])))
    return captured.get().rstrip()


def _table(heads: tuple[str, ...], rows: Any) -> Table:
    table = Table(*heads, box=None, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def _condition(condition: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("type", "status", "reason", "lastTransitionTime", "message")
    return tuple(condition[key] for key in keys)


def _group(group: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        group[key] for key in ("index", "state", "reason", "modelRevision", "epoch", "restarts", "since", "message")
    )


def _pod(pod: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(pod[key] for key in ("name", "stage", "phase", "pid", "address", "restarts", "log"))
