"""Say in sentences why a deployment is as it is, and what the newest recovery of each group was about.

It is told from the conditions, the groups' states and timings, and the events: on a cluster those that the API server
still has (an hour), on this machine those of the whole run, with the steps of each recovery.

Examples:
  bireme why                           the deployment that is up on this machine
  bireme why demo -n models            one on the cluster that kubectl uses
  kubectl bireme why demo              the same, in the context's namespace

exit codes: 0 every group serves, 1 one does not, or nobody knows
"""

import argparse
import time

from bireme.cli import target
from bireme.cli.story import all_serve, tell
from bireme.cli.target import opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme why`."""
    target.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the reasons."""
    with opened(arguments) as deployment:
        content = deployment.read()
        paragraphs = [*tell(content, deployment.told(), time.time()), *deployment.details()]
        print("\n\n".join(paragraphs))
        return 0 if all_serve(content) else 1
