"""`kubectl bireme VERB`: the verbs about deployments, always against the cluster that kubectl uses.

kubectl runs the program `kubectl-bireme` that it finds on the PATH; installing Bireme puts it there.
"""

import sys
from collections.abc import Sequence
from typing import Final

from bireme.cli.main import VERBS, Program

_ABOUT: Final = """\
See and steer Bireme's deployments on the cluster that kubectl uses."""

_EXAMPLES: Final = """\
examples:
  kubectl bireme status demo             groups, stages and nodes, and what is waited for
  kubectl bireme why demo -n models      the last recovery of each group, in sentences
  kubectl bireme restart demo            every group anew, one after the other
  kubectl bireme rollback demo           the revision before
  kubectl bireme resume demo             go on after a pause; a fresh restart budget for what has failed
  kubectl bireme drain-node gpu-7        cordon it and wait until every group has left

`kubectl bireme VERB --help` has more about each."""

_NAMES: Final = (
    "status", "why", "pause", "resume", "restart", "reload", "rollback", "drain-node", "undrain-node",
)  # fmt: skip
PROGRAM: Final = Program("kubectl bireme", _ABOUT, _EXAMPLES, {name: VERBS[name] for name in _NAMES}, cluster=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; see `bireme.cli.main`."""
    return PROGRAM.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
