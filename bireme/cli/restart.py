"""Make every group anew, one after the other, within the limits of a rollout and without a failed request.

Also the way out of a spent restart budget: a group that is Failed gets a fresh one. Ctrl-C only stops the waiting.

Examples:
  bireme restart                       the deployment that is up on this machine
  bireme restart demo -n models        one on the cluster that kubectl uses
  kubectl bireme restart demo          the same, in the context's namespace

exit codes: 0 every group serves again, 1 it can't, or not in time, 64 it can't be asked for
"""

import argparse
import time
from datetime import UTC, datetime

from bireme.cli import follow, target
from bireme.cli.target import Content, Target, opened, refuse_paused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme restart`."""
    target.add_arguments(parser)
    follow.add_arguments(parser, 3600.0)


def run(arguments: argparse.Namespace) -> int:
    """Ask for it and wait for its end."""
    with opened(arguments) as deployment:
        value = _restart(deployment)
        if arguments.no_wait:
            return 0

        def done(content: Content) -> int | None:
            acknowledged = (content.get("status") or {}).get("restart") == value
            return follow.settled(content) if acknowledged else None

        return follow.follow(deployment, done, arguments.timeout)


def new_value() -> str:
    """Return a value for an annotation: readable, and never the same twice."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.{time.time_ns() % 1_000_000_000:09d}Z"


def _restart(deployment: Target) -> str:
    refuse_paused(deployment.read(), "nothing would be restarted")
    value = new_value()
    deployment.restart(value)
    print(f"{deployment.where}: every group is made anew ({value})", flush=True)
    return value
