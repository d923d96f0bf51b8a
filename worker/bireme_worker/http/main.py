"""One HTTP process of a leader: `python -m bireme_worker.http.main --index I`.

All of them bind the same address with SO_REUSEPORT, and the kernel spreads connections over them.
"""

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop
from aiohttp import web

from bireme.names import Env, Exit, Port
from bireme.process import die_with_parent
from bireme_worker.checkpoints.errors import CheckpointError
from bireme_worker.http.app import make_app
from bireme_worker.http.coordinator_link import CoordinatorLink
from bireme_worker.http.service import Service
from bireme_worker.http.texts import name_text
from bireme_worker.identity import BadIdentity, Identity, read_identity
from bireme_worker.text.tokenizer import TextModel

BACKLOG: Final = 1024
LINGER_S: Final = 1.0
"""How long SIGTERM lets open answers end; the supervisor drained before it."""

log = logging.getLogger("bireme_worker.http")


class CannotListen(Exception):
    """The address can't be bound; exit code 64."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="bireme_worker.http.main", description="One HTTP process of a leader.")
    parser.add_argument("--index", type=int, default=0, help="which of the leader's HTTP processes this is")
    index = parser.parse_args(arguments).index
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s http-{index} %(levelname)s %(message)s")
    try:
        identity = read_identity()
        listener = listen(identity.pod_ip, Port.HTTP)
        text, text_name = name_text(Path(identity.checkpoint.source))
    except (BadIdentity, CannotListen) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_CHECKPOINT
    uvloop.run(serve(identity, text, text_name, listener))
    return Exit.DRAINED


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that other HTTP processes of this pod may share.

    Raises:
        CannotListen: the address is somebody else's, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} of {host} is in use by another program: stop it") from error
        raise CannotListen(f"can't listen on {host}:{port}: {error.strerror}; check {Env.POD_IP}") from error
    return listener


async def serve(identity: Identity, text: TextModel, text_name: str, listener: socket.socket) -> None:
    """Serve on ``listener`` until SIGTERM (or SIGINT where no parent drains us first)."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    # Ctrl-C reaches every process of the terminal; with a parent it is the parent that decides.
    loop.add_signal_handler(signal.SIGINT, lambda: None if Env.PARENT_PID in os.environ else stopped.set())
    link = CoordinatorLink(identity.requests_socket, identity.token)
    runner = web.AppRunner(
        make_app(Service(identity, text, link, text_name)),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=LINGER_S,
    )
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    log.info("listening on %s:%d for %s", identity.pod_ip, Port.HTTP, identity.model_name)
    await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
