"""Say why a deployment on this machine is as it is: its groups now, and what the newest recovery of each was about.

Examples:
  bireme why                the deployment that is up
  bireme why smollm2
"""

import argparse
import json
import sys

from bireme.cli.errors import Refused
from bireme.cli.recoveries import Recovery, recoveries
from bireme.cli.status import find
from bireme.cli.timeline import read, text
from bireme.names import GroupState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme why`."""
    parser.add_argument("name", nargs="?", help="name of the deployment; may be left out when there is only one")


def run(arguments: argparse.Namespace) -> int:
    """Print the reasons; 0 when every group serves, 1 when one does not."""
    try:
        rundir = find(arguments.name)
        newest = {recovery.group: recovery for recovery in recoveries(read(rundir.events))}
        groups = json.loads(rundir.status.read_bytes())["status"]["groups"]
    except Refused as error:
        print(f"bireme why: {error}", file=sys.stderr)
        return error.exit_code
    for group in groups:
        reason = "" if group["reason"] == "None" else f" ({group['reason']})"
        message = f": {group['message']}" if group["message"] else ""
        print(f"group {group['index']} is {group['state']}{reason} since {group['since']}{message}")
        print(_newest(newest.get(group["index"])), end="\n\n")
    print(f"all of it: bireme timeline {rundir.events}")
    return 0 if groups and all(group["state"] == GroupState.SERVING for group in groups) else 1


def _newest(recovery: Recovery | None) -> str:
    return "  nothing was lost" if recovery is None else text(recovery)
