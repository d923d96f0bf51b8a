"""What the router was told on its command line: where it listens, what it refuses, how long it waits.

The defaults are those of `spec.router` in the API (a test compares them).
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from bireme.names import Exit, Port

_ABOUT: Final = """\
One OpenAI-compatible address in front of many groups.

Requests go to the cheaper of two groups drawn at random and of those that know the prompt's beginning; what is
provably unprocessed is sent again elsewhere; a stream whose group is lost goes on where another group can take it,
and its client sees no seam."""

_OVERLOAD: Final = """\
what a client is told, and when:
  400  malformed request, or it can never fit        401  no API key or an unknown one, with --api-keys
                                                     404  no such model or path
  413  body over --max-body-bytes                    429  --max-queued requests wait already, the wait would be
                                                          too long, every group is full, or a key is over --limits
  502  lost --retry-attempts times without progress  503  no group within --queue-timeout, or the router stops
  504  --total-timeout or x-request-timeout passed   429, 503 and a 504 without a send carry Retry-After

exit codes: 0 stopped as asked, 64 bad configuration (a taken port too), 70 internal error
SIGTERM stops accepting and lets open streams finish; a second one stops at once."""


@dataclass(frozen=True)
class Settings:
    """See ``--help`` for each."""

    routes: Path
    host: str = "127.0.0.1"
    port: int = int(Port.ROUTER)
    max_body_bytes: int = 8_388_608
    max_queued: int = 1024
    retry_attempts: int = 3
    queue_timeout_s: float = 60.0
    connect_timeout_s: float = 2.0
    first_token_timeout_s: float = 300.0
    idle_timeout_s: float = 60.0
    total_timeout_s: float = 3600.0
    limits: Path | None = None
    api_keys: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: Path | None = None
    cross_revision: bool = False
    hedge_after_s: float = 0.0
    zone: str = ""
    pods: str | None = None
    service_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    tokens: Path = Path("/bireme/tokens")
    processes: int = 1
    share: Path | None = None
    index: int = 0


_SOUND_DEPLOYMENT: Final = re.compile(r"[a-z0-9.-]+/[a-z0-9.-]+")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Exit.BAD_CONFIGURATION, f"{self.prog}: {message}\n")


def read_settings(arguments: Sequence[str]) -> Settings:
    """Parse the command line; ends the process with 64 and a text when it can't be right."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    if options.processes > 1 and options.pods:
        parser.error("--processes is for a router of its own; with --pods run more replicas")
    if options.pods and not _SOUND_DEPLOYMENT.fullmatch(options.pods):
        parser.error(f"--pods {options.pods}: write NAMESPACE/NAME")
    return Settings(**vars(options))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bireme-router",
        description=_ABOUT,
        epilog=_OVERLOAD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole = _whole_number(least=0)
    add = parser.add_argument
    add("--routes", type=Path, required=True, metavar="FILE", help="routes file; read again whenever it changes")
    add("--host", default=Settings.host, metavar="H", help="address to listen on (%(default)s)")
    add("--port", type=whole, default=Settings.port, metavar="P", help="port to listen on; 0 picks one (%(default)s)")
    text = "router processes on that port; they share keys' limits and fairness (%(default)s)"
    add("--processes", type=_whole_number(least=1), default=Settings.processes, metavar="N", help=text)
    text = "where this router runs: groups of a caller's zone are preferred when costs tie (unknown)"
    add("--zone", default=Settings.zone, metavar="Z", help=text)
    add("--share", type=Path, help=argparse.SUPPRESS)
    add("--index", type=whole, default=0, help=argparse.SUPPRESS)
    _add_cluster(parser.add_argument_group("in a cluster: groups are found by their pods, --routes names models only"))
    _add_edge(parser.add_argument_group("edge: files are read again when they change"))
    _add_limits(parser.add_argument_group("limits, each with its own clear error"))
    _add_timeouts(parser.add_argument_group("timeouts, in seconds"))
    return parser


def _add_cluster(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--pods", metavar="NAMESPACE/NAME", help="the InferenceDeployment whose leaders to follow")
    table = (
        ("service-account", Settings.service_account, "directory with this pod's token and ca.crt (%(default)s)"),
        ("tokens", Settings.tokens, "directory with the group tokens, a file for each group's index (%(default)s)"),
    )
    for name, default, text in table:
        group.add_argument(f"--{name}", type=Path, default=default, metavar="DIR", help=text)


def _add_edge(group: "argparse._ArgumentGroup") -> None:
    table = (
        ("api-keys", "let in only who knows a key: JSON file with names by SHA-256; else 401 (everybody)"),
        ("tls-cert", "certificate chain, PEM: the port speaks TLS (plain)"),
        ("tls-key", "its private key, PEM"),
        ("access-log", "append one JSON line per request; - is standard output (none)"),
    )
    for name, text in table:
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)


def _add_limits(group: "argparse._ArgumentGroup") -> None:
    positive = _whole_number(least=1)
    group.add_argument(
        "--max-body-bytes",
        type=positive,
        default=Settings.max_body_bytes,
        metavar="N",
        help="largest request body, above it 413 (%(default)s)",
    )
    group.add_argument(
        "--max-queued",
        type=_whole_number(least=0),
        default=Settings.max_queued,
        metavar="N",
        help="requests that may wait here for a group, above it 429 (%(default)s)",
    )
    group.add_argument(
        "--limits",
        type=Path,
        default=Settings.limits,
        metavar="FILE",
        help="JSON file with requests and tokens per minute by API key, above them 429; read again when it changes "
        "(none)",
    )
    group.add_argument(
        "--retry-attempts",
        type=positive,
        default=Settings.retry_attempts,
        metavar="N",
        help="how often a request may be sent and lost without progress, the first time included; "
        "refusals that prove that nothing was processed are not counted; 1 turns retries off (%(default)s)",
    )
    group.add_argument(
        "--cross-revision",
        action="store_true",
        help="a stream that broke may go on under another model revision, when its own can't be had at once (never)",
    )


def _add_timeouts(group: "argparse._ArgumentGroup") -> None:
    table = (
        ("queue", Settings.queue_timeout_s, "longest wait for a group, then 503"),
        ("connect", Settings.connect_timeout_s, "how long a group may take to accept a connection"),
        ("first-token", Settings.first_token_timeout_s, "how long a group may take to its first token"),
        ("idle", Settings.idle_timeout_s, "longest gap between two tokens before the stream goes on elsewhere"),
        ("total", Settings.total_timeout_s, "longest life of a request; the header x-request-timeout can shorten it"),
    )
    for name, default, text in table:
        group.add_argument(
            f"--{name}-timeout",
            dest=f"{name.replace('-', '_')}_timeout_s",
            type=_seconds,
            default=default,
            metavar="S",
            help=f"{text} (%(default)g)",
        )
    group.add_argument(
        "--hedge-after",
        dest="hedge_after_s",
        type=_seconds,
        default=Settings.hedge_after_s,
        metavar="S",
        help="send a request to a second group too when the first brings no token for so long; at most one request in "
        "twenty, whoever is slower is cancelled (never)",
    )


def _whole_number(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small, the least is {least}")
        return value

    return whole_number


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return value
