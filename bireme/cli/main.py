"""`bireme`: the command line. Each verb is a module with ``add_arguments`` and ``run``, loaded only when it is used."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Final, NoReturn

from bireme.cli.errors import Refused
from bireme.names import Exit

_ABOUT: Final = """\
Serve a large model from groups of processes that survive the loss of any of them.

A deployment is one YAML file, the same on a laptop and on Kubernetes. On a laptop `bireme up` runs it: every pipeline
stage is a process, a router in front of the groups speaks OpenAI's protocol, and what dies is replaced while
clients' streams go on elsewhere."""

_EXAMPLES: Final = """\
examples:
  bireme model smollm2                         prepare a small real model (once, 540 MB)
  bireme up -f examples/smollm2.yaml \\
      --mount /models=~/.cache/bireme          serve it; Ctrl-C drains and stops
  bireme up -f examples/smollm2.yaml \\
      --mount /models=~/.cache/bireme \\
      --ask "What is the capital of France?"   ask one question and stop
  bireme reload smollm2 --revision 2 \\
      --path /models/smollm2-tuned             other weights, without a restart
  bireme status                                what runs, in which state, and why
  bireme why demo -n models                    the same of a cluster's: -n, --context or --kubeconfig;
                                               `kubectl bireme VERB` takes the same verbs

`bireme VERB --help` has more about each."""


@dataclass(frozen=True)
class Verb:
    """What it does in a line, and the module that does it."""

    summary: str
    module: str


VERBS: Final = {
    "up": Verb("run a deployment on this machine", "bireme.cli.up"),
    "status": Verb("show what a deployment does, on this machine or a cluster", "bireme.cli.status"),
    "why": Verb("say in sentences why a deployment is as it is", "bireme.cli.why"),
    "restart": Verb("make every group anew, one after the other", "bireme.cli.restart"),
    "pause": Verb("leave a deployment as it is until it is resumed", "bireme.cli.pause"),
    "resume": Verb("go on after a pause, and try again what has failed", "bireme.cli.resume"),
    "rollback": Verb("want an earlier revision again", "bireme.cli.rollback"),
    "timeline": Verb("show what happened in each recovery of a run", "bireme.cli.timeline"),
    "profile": Verb("record where the time of every rank goes", "bireme.cli.profile"),
    "reload": Verb("serve another checkpoint without a restart", "bireme.cli.reload"),
    "drain-node": Verb("empty a node of a cluster without a failed request", "bireme.cli.drain_node"),
    "undrain-node": Verb("let a node of a cluster take groups again", "bireme.cli.undrain_node"),
    "convert": Verb("cut a checkpoint into one file per rank, or quantize it", "bireme.cli.convert"),
    "inspect": Verb("show what a checkpoint needs, and which layouts fit", "bireme.cli.inspect"),
    "model": Verb("prepare a demo model", "bireme.cli.model"),
}

_PIPE_CLOSED: Final = 141
"""What shells make of SIGPIPE."""

Run = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """argparse with our exit code for a command that can't be right."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.print_usage(sys.stderr)
        self.exit(Exit.BAD_CONFIGURATION, f"{self.prog}: {message}\n")


@dataclass(frozen=True)
class Program:
    """A command with verbs. ``cluster`` says that they are always about a cluster."""

    name: str
    about: str
    examples: str
    verbs: Mapping[str, Verb]
    cluster: bool = False

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Run one verb; the exit code is one of ``names.Exit``, 1 for "no" and 130 after an interruption."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        parser = self._parser()
        known = next((word for word in words if not word.startswith("-")), None)
        if known is None or known not in self.verbs:
            parser.parse_args(words)
            parser.print_help()
            return 0
        try:
            code = self._run(known, words[words.index(known) + 1 :])
            sys.stdout.flush()
        except Refused as error:
            print(f"{self.name} {known}: {error}", file=sys.stderr)
            return error.exit_code
        except ModuleNotFoundError as error:
            print(f"{self.name} {known} needs the module {error.name}: pip install 'bireme[all]'", file=sys.stderr)
            return Exit.BAD_CONFIGURATION
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # as in `bireme status | head`: the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _PIPE_CLOSED
        return code

    def _run(self, verb: str, words: Sequence[str]) -> int:
        module = import_module(self.verbs[verb].module)
        parser = Parser(
            prog=f"{self.name} {verb}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(parser)
        parser.set_defaults(cluster=self.cluster)
        run: Run = module.run
        return run(parser.parse_args(words))

    def _parser(self) -> Parser:
        parser = Parser(
            prog=self.name,
            description=self.about,
            epilog=self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action="version", version=f"{self.name} {version('bireme')}")
        verbs = parser.add_subparsers(title="verbs", metavar="VERB")
        for name, verb in self.verbs.items():
            verbs.add_parser(name, help=verb.summary)
        return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb of `bireme`."""
    return Program("bireme", _ABOUT, _EXAMPLES, VERBS).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
