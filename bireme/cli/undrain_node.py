"""Take `bireme drain-node` back: the node takes groups again, and groups that have not left it stay.

Examples:
  bireme undrain-node gpu-7
  kubectl bireme undrain-node gpu-7
"""

import argparse

from bireme.cli import target
from bireme.cli.nodes import nodes_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bireme undrain-node`."""
    parser.add_argument("node", help="name of the node, as `kubectl get nodes` shows it")
    target.add_arguments(parser, name=False)


def run(arguments: argparse.Namespace) -> int:
    """Make the node schedulable."""
    with nodes_of(arguments) as nodes:
        nodes.cordon(arguments.node, unschedulable=False)
        print(f"{arguments.node} takes groups again")
    return 0
