"""Show what a deployment does: conditions, groups with state and reason, and what each group is made of.

On this machine every process is shown with its pid: supervisors, and the ranks that their leader tells of. On a cluster
it is the stage pods with their nodes. The exit code is 1 when `bireme up` of that deployment does not run any more;
what is shown is then the last word.

Examples:
  bireme status                        the deployment that is up on this machine
  bireme status smollm2 --watch        again at every change
  bireme status smollm2 -o json        the object, as kubectl would give it, with pids and logs under "local"
  kubectl bireme status demo           one on the cluster that kubectl uses
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bireme.cli import target
from bireme.cli.errors import Refused
from bireme.cli.target import Content, Process, Target, groups, opened

_WIDTH_OF_FILES: Final = 220
_CONDITION: Final = ("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
_GROUP: Final = ("GROUP", "STATE", "REASON", "MODEL", "EPOCH", "RESTARTS", "SINCE", "MESSAGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme status`."""
    target.add_arguments(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help="(%(default)s)")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again at every change, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Print the status; 1 when the deployment is not up."""
    with opened(arguments) as deployment:
        seen = ""
        while True:
            text = _rendered(deployment, arguments.output)
            if text != seen:
                seen = text
                print(text, flush=True)
            try:
                deployment.check_alive()
            except Refused as error:
                print(f"bireme status: {error}: this is its last word", file=sys.stderr)
                return error.exit_code
            if not arguments.watch:
                return 0
            time.sleep(deployment.poll_s)


def _rendered(deployment: Target, output: str) -> str:
    content = deployment.read()
    if output == "json":
        return json.dumps(content, indent=2)
    if output == "yaml":
        import yaml

        return str(yaml.safe_dump(content, sort_keys=False)).rstrip()
    return _tables(deployment, content)


def _tables(deployment: Target, content: Content) -> str:
    status = content.get("status") or {}
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    with console.capture() as captured:
        wanted, serving = content["spec"].get("replicas", 1), status.get("readyReplicas", 0)
        head = f"{deployment.where}  {serving} of {wanted} groups serve  {deployment.endpoint(content)}"
        console.print(head, highlight=False)
        if context := (content.get("local", {}).get("limits") or {}).get("context"):
            why = content["local"]["limits"]["message"]
            console.print(f"up to {context} tokens a request{': ' if why else ''}{why}", highlight=False)
        console.print()
        console.print(_table(_CONDITION, map(_condition, status.get("conditions") or ())))
        console.print()
        console.print(_table(_GROUP, map(_group, groups(content))))
        console.print()
        found = deployment.processes(content)
        heads, rows = _of_processes(found) if any(one.pid for one in found) or "local" in content else _of_pods(found)
        console.print(_table(heads, rows))
        for text in _without_process(content, found):
            console.print(text, highlight=False)
    return captured.get().rstrip()


def _without_process(content: Content, found: Iterable[Process]) -> Iterable[str]:
    """Groups that wait for their next start: what to read meanwhile."""
    known = {process.group for process in found}
    for index in [group["index"] for group in groups(content) if "local" in content]:
        if index not in known:
            logs = Path(content["local"]["router"]["log"]).parent
            yield f"group {index} has no process now: the logs of its last ones are in {logs}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Table:
    table = Table(*heads, box=None, pad_edge=False, header_style="")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def _condition(condition: Content) -> tuple[Any, ...]:
    keys = ("type", "status", "reason", "lastTransitionTime", "message")
    return tuple(condition.get(key, "") for key in keys)


def _group(group: Content) -> tuple[Any, ...]:
    keys = ("index", "state", "reason", "modelRevision", "epoch", "restarts", "since", "message")
    return tuple(group.get(key, "") for key in keys)


def _of_processes(found: Iterable[Process]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    heads = ("GROUP", "STAGE", "PROCESS", "PID", "PHASE", "ADDRESS", "RESTARTS", "LOG")
    rows = [(*_place(p), p.name, p.pid or "", p.phase, p.place, _restarts(p), p.more) for p in found]
    return heads, rows


def _place(process: Process) -> tuple[str, str]:
    """The router belongs to no group."""
    return ("", "") if process.group < 0 else (str(process.group), str(process.stage))


def _of_pods(found: Iterable[Process]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    heads = ("GROUP", "STAGE", "POD", "PHASE", "NODE", "ADDRESS", "RESTARTS")
    return heads, [(p.group, p.stage, p.name, p.phase, p.place, p.more, p.restarts) for p in found]


def _restarts(process: Process) -> str:
    return "" if process.name.startswith("rank") else str(process.restarts)
