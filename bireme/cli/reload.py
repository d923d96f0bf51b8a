"""Serve another checkpoint of the same model without a restart and without a failed request.

The groups change one after the other. Each reads and verifies the new weights beside the served ones first; if anything
is wrong with them the old ones go on serving, and the reason is told. Running requests end under the old weights (mode
finish, for at most a minute), or are computed anew under the new ones at once (mode restart). Ctrl-C only stops the
waiting: the reload goes on.

Examples:
  bireme reload smollm2 --path /models/smollm2-tuned --revision 2026-12-01
  bireme reload smollm2 --path /models/smollm2-tuned --revision 2026-12-01 --mode restart

exit codes: 0 every group serves it, 1 `up` does not run or took too long, 64 it can't be asked for,
65 the checkpoint can't be served: the old one goes on
"""

import argparse
import os
import sys
import time
from typing import Any

from bireme.api import InvalidDeployment
from bireme.cli.errors import Refused
from bireme.cli.status import NOT_RUNNING, find, read
from bireme.names import Exit, GroupState, Reason
from bireme_operator.local.rundir import RunDir
from bireme_operator.local.runner import with_checkpoint
from bireme_operator.local.wish import SIGNAL, Wish, write_wish

_POLL_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme reload`."""
    add = parser.add_argument
    add("name", nargs="?", help="name of the deployment; may be left out when only one is up")
    add("--path", required=True, help="the new checkpoint, as spec.model.source.path would name it")
    add("--revision", required=True, help="its name; responses carry it")
    add("--mode", choices=("finish", "restart"), default="finish", help="running requests (%(default)s)")
    add("--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait for the end (%(default)g)")


def run(arguments: argparse.Namespace) -> int:
    """Ask for the reload and wait for its end."""
    try:
        rundir = find(arguments.name)
        before = _ask(rundir, Wish(arguments.path, arguments.revision, arguments.mode))
        return _follow(rundir, before, arguments.revision, time.monotonic() + arguments.timeout)
    except InvalidDeployment as error:
        print(f"bireme reload: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    except Refused as error:
        print(f"bireme reload: {error}", file=sys.stderr)
        return error.exit_code


def _ask(rundir: RunDir, wish: Wish) -> int:
    """Tell `up`; returns the generation of the object before it hears of it."""
    holder = rundir.holder()
    if holder is None:
        raise Refused(f"{rundir.path.name} is not up: start it with `bireme up`", NOT_RUNNING)
    content = read(rundir.status)
    model = content["spec"]["model"]
    if model["revision"] == wish.revision and model["source"] != {"path": wish.path}:
        raise Refused(f"revision {wish.revision} names {model['source']}: give other weights another --revision")
    with_checkpoint(content, wish)
    write_wish(rundir.wish, wish)
    os.kill(holder, SIGNAL)
    return int(content["metadata"]["generation"])


def _follow(rundir: RunDir, before: int, revision: str, deadline: float) -> int:
    shown: dict[int, str] = {}
    while time.monotonic() < deadline:
        if rundir.holder() is None:
            raise Refused(f"{rundir.path.name} was stopped meanwhile", NOT_RUNNING)
        content = read(rundir.status)
        groups: list[dict[str, Any]] = content["status"]["groups"]
        if content["status"]["observedGeneration"] > before:
            _show(groups, shown)
            if any(group["reason"] == Reason.RELOAD_FAILED for group in groups):
                return Exit.BAD_CHECKPOINT
            if groups and all(_done(group, revision) for group in groups):
                return 0
        time.sleep(_POLL_S)
    raise Refused("it takes longer than --timeout; it goes on: `bireme status` shows how far it is", NOT_RUNNING)


def _done(group: dict[str, Any], revision: str) -> bool:
    return (group["modelRevision"], group["state"]) == (revision, GroupState.SERVING)


def _show(groups: list[dict[str, Any]], shown: dict[int, str]) -> None:
    for group in groups:
        reason = "" if group["reason"] == Reason.NONE else f" ({group['reason']})"
        message = f": {group['message']}" if group["message"] else ""
        text = f"group {group['index']}  {group['modelRevision']}  {group['state']}{reason}{message}"
        if shown.get(group["index"]) != text:
            shown[group["index"]] = text
            print(text, flush=True)
