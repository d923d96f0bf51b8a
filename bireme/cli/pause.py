"""Leave a deployment as it is: what serves goes on, and no group is made, changed, moved, replaced or removed.

It writes spec.paused. A rollout stands still where it is, and its deadline does not run. What is lost meanwhile comes
back when `bireme resume` is called.

Examples:
  bireme pause                         the deployment that is up on this machine
  kubectl bireme pause demo            one on the cluster, in the context's namespace

exit codes: 0 it is paused, 1 nobody has acted on it in time, 64 it can't be asked for
"""

import argparse

from bireme.cli import follow, target
from bireme.cli.target import Content, conditions, opened
from bireme.names import ConditionType, Reason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme pause`."""
    target.add_arguments(parser)
    follow.add_arguments(parser, 60.0)


def run(arguments: argparse.Namespace) -> int:
    """Ask for it and wait until whoever looks after the deployment has read it."""
    with opened(arguments) as deployment:
        if deployment.read()["spec"].get("paused"):
            print(f"{deployment.where} is paused already")
            return 0
        deployment.pause()
        print(f"{deployment.where} is left as it is until `bireme resume`", flush=True)
        return 0 if arguments.no_wait else follow.follow(deployment, _is_paused, arguments.timeout)


def _is_paused(content: Content) -> int | None:
    said = conditions(content).get(ConditionType.READY, {}), conditions(content).get(ConditionType.AVAILABLE, {})
    return 0 if Reason.PAUSED.value in {one.get("reason") for one in said} else None
