"""`bireme-operator`, or `python -m bireme_operator.main`: command line, signals, exit codes, the queue's workers."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from bireme.names import Exit
from bireme.process import die_with_parent
from bireme_operator.kube.errors import KubeError, NamespaceEnding
from bireme_operator.queue import WorkQueue
from bireme_operator.shell.election import LostLease
from bireme_operator.shell.operator import run
from bireme_operator.shell.probe import PortTaken
from bireme_operator.shell.settings import Settings
from bireme_operator.shell.signals import Watched
from bireme_operator.shell.store import Key

log = logging.getLogger("bireme_operator")

_LONGEST_REST_S: Final = 1.0
_YOUNG: Final = 20_000
"""New objects between two looks for garbage; little of what an event makes refers to itself."""
_ABOUT: Final = """\
Keeps the groups of every InferenceDeployment alive on a Kubernetes cluster.

Connects as its service account or, outside a cluster, as KUBECONFIG says. Several may run: whoever holds the Lease
acts, the others are warm. exit codes: 0 stopped as asked, 64 bad configuration, 70 internal error, 75 Lease lost"""

_SIGNALS: Final = """\
What says that a node will not last, beside what is known: groups on it are had elsewhere. S: it goes in so many
seconds. Each may be repeated."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Exit.BAD_CONFIGURATION, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit code is one of ``names.Exit``."""
    die_with_parent()
    settings = _read(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _spare_the_collector()
    try:
        asyncio.run(_run(settings))
    except LostLease as error:
        log.error("%s: another operator acts now, this one ends", error)  # noqa: TRY400  # no fault of the program
        return Exit.PEER_LOST
    except PortTaken as error:
        log.error("%s", error)  # noqa: TRY400  # no fault of the program
        return Exit.BAD_CONFIGURATION
    except Exception:
        log.exception("the operator ends: this is a fault in it, please report it")
        return Exit.INTERNAL
    return Exit.DRAINED


def _spare_the_collector() -> None:
    """What is imported stays: to look through it for garbage again and again is a tenth of a second each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(settings, work, stop)


async def work(queue: WorkQueue[Key], visit: Callable[[Key], Awaitable[float | None]]) -> None:
    """Work on one key after another for ever. One sick object must not stop the care of all others.

    Raises:
        LostLease: this process may not act any more.
    """
    while True:
        key = await queue.get()
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            due = await visit(key)
        except LostLease:
            raise
        except NamespaceEnding as error:
            log.info("%s/%s is left alone: %s", *key, error)
            queue.done(key)
        except KubeError as error:
            log.warning("%s/%s again in %.1f s: %s: %s", *key, queue.failed(key), type(error).__name__, error)
        except Exception:
            log.exception("%s/%s again in %.1f s: a fault in the operator", *key, queue.failed(key))
        else:
            # A visit looks at all groups, however little has changed: so many changes are looked at together.
            queue.done(key, rest_s=_rest_s(time.perf_counter() - began, time.thread_time() - cpu))
            if due is not None:
                queue.add_at(key, due)


def _rest_s(took: float, cpu: float) -> float:
    """Leave most of the time to what visits have begun, the more so where the machine or the API server is busy."""
    return min(2 * cpu + took / 2, _LONGEST_REST_S)


def _read(arguments: Sequence[str]) -> Settings:
    parser = _parser()
    options = parser.parse_args(arguments)
    key = options.master_key_file
    try:
        size = len(key.read_bytes().strip())
    except OSError as error:
        parser.error(f"--master-key-file {key} can't be read: {error.strerror}")
    if size < 32:
        parser.error(f"--master-key-file {key} holds {size} bytes, at least 32 are needed: head -c 32 /dev/urandom")
    if not options.namespace and not options.all_namespaces:
        parser.error("name what to look after: --namespace NAME, once or more, or --all-namespaces")
    try:
        watched = Watched.of(options.leave_taint, options.leave_condition)
    except ValueError as error:
        parser.error(f"--leave-taint or --leave-condition: {error}")
    return Settings(
        namespaces=() if options.all_namespaces else tuple(options.namespace),
        master_key_file=key,
        worker_image=options.worker_image,
        router_image=options.router_image or options.worker_image,
        identity=options.identity,
        lease_namespace=options.lease_namespace or (options.namespace or ["default"])[0],
        lease_name=options.lease_name,
        lease_seconds=options.lease_seconds,
        probe_port=options.probe_port,
        workers=options.workers,
        watched=watched,
        silent_node_seconds=options.silent_node_seconds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bireme-operator", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--namespace", action="append", default=[], metavar="NAME", help="namespace to look after; may be repeated")
    add("--all-namespaces", action="store_true", help="look after the whole cluster")
    add(
        "--master-key-file", type=Path, required=True, metavar="FILE", help="secret from which group tokens are derived"
    )
    image = os.environ.get("BIREME_WORKER_IMAGE", "bireme/worker:latest")
    add("--worker-image", default=image, metavar="I", help="image of stages whose template names none (%(default)s)")
    image = os.environ.get("BIREME_ROUTER_IMAGE", "")
    add("--router-image", default=image, metavar="I", help="image of routers; default the worker image")
    _add_lease(parser.add_argument_group("leader election"))
    port = "port of /healthz and /metrics; 0 takes any and the log names it (%(default)s)"
    add("--probe-port", type=int, default=Settings.probe_port, metavar="P", help=port)
    add(
        "--workers", type=int, default=Settings.workers, metavar="N", help="deployments worked on at once (%(default)s)"
    )
    _add_signals(parser.add_argument_group("nodes that are to be left", _SIGNALS))
    return parser


def _add_signals(group: "argparse._ArgumentGroup") -> None:
    key = "a taint of this key; whether the pods tolerate it or not"
    group.add_argument("--leave-taint", action="append", default=[], metavar="KEY[:S]", help=key)
    kind = "a condition of this type with this status (True)"
    group.add_argument("--leave-condition", action="append", default=[], metavar="TYPE[=STATUS][:S]", help=kind)
    group.add_argument(
        "--silent-node-seconds",
        type=int,
        default=Settings.silent_node_seconds,
        metavar="S",
        help="its kubelet, or a stage on it by its peers, is not heard for so long; 0 for never (%(default)s)",
    )


def _add_lease(group: "argparse._ArgumentGroup") -> None:
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    group.add_argument("--identity", default=identity, metavar="ID", help="name in the Lease; default host and chance")
    group.add_argument("--lease-namespace", metavar="NAME", help="default: the first --namespace, else default")
    group.add_argument("--lease-name", default=Settings.lease_name, metavar="NAME", help="(%(default)s)")
    group.add_argument(
        "--lease-seconds",
        type=int,
        default=Settings.lease_seconds,
        metavar="S",
        help="how long others wait for a holder that fell silent (%(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
