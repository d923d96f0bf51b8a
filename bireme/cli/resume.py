"""Go on after a pause, and try again what was given up: groups with a spent restart budget, a rollout that failed.

Groups that serve are not touched; `bireme restart` makes all of them anew. It sets spec.paused to false where that is
true, and writes the annotation bireme.dev/resume.

Examples:
  bireme resume                        the deployment that is up on this machine
  kubectl bireme resume demo           one on the cluster, in the context's namespace

exit codes: 0 every group serves, 1 it can't, or not in time, 64 it can't be asked for
"""

import argparse

from bireme.cli import follow, target
from bireme.cli.restart import new_value
from bireme.cli.target import Content, opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme resume`."""
    target.add_arguments(parser)
    follow.add_arguments(parser, 3600.0)


def run(arguments: argparse.Namespace) -> int:
    """Ask for it and wait for its end."""
    with opened(arguments) as deployment:
        value = new_value()
        deployment.resume(value)
        print(f"{deployment.where}: goes on, and tries again what has failed ({value})", flush=True)
        if arguments.no_wait:
            return 0

        def done(content: Content) -> int | None:
            acknowledged = (content.get("status") or {}).get("resume") == value
            return follow.settled(content) if acknowledged else None

        return follow.follow(deployment, done, arguments.timeout)
