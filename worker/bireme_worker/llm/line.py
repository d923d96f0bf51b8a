"""The conversation with the coordinator, as an HTTP process has it, but blocking. It is dialled again when lost."""

import select
import socket
import time
from typing import Final

from bireme.wire.errors import WireError
from bireme.wire.frames import SocketChannel
from bireme.wire.requests import Allow, Cancel, Limits, RequestKinds, Serving, Submit, request_codec
from bireme_worker.llm.errors import EngineFailed
from bireme_worker.llm.pods import Pods

_LOOK_S: Final = 0.5
"""How often the pods are looked at while nothing comes."""
_DIAL_S: Final = 0.05


class LineLost(Exception):
    """The coordinator is gone, with all that it knew; ``Line.open`` finds the next one."""


class Line:
    """Speaks to the coordinator of ``pods``."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._channel: SocketChannel[RequestKinds] | None = None

    def open(self, limit_s: float) -> Limits:
        """Dial and wait until the group takes work; says what it takes.

        Raises:
            EngineFailed: a pod ended, or the group does not serve within ``limit_s``.
        """
        deadline, word = time.monotonic() + limit_s, "its coordinator is not there"
        while time.monotonic() < deadline:
            try:
                if self._channel is None:
                    self._channel = self._dial()
                message = self.receive(deadline)
                if isinstance(message, Serving):
                    if message.serving:
                        return message.limits
                    word = f"{message.reason}: {message.message}"
            except (LineLost, OSError, WireError):
                self.close()
                self._pods.check()
                time.sleep(_DIAL_S)
        raise EngineFailed(f"the engine does not serve after {limit_s:g} s ({word}): see its logs (logs=folder)")

    def receive(self, deadline: float = float("inf")) -> RequestKinds | None:
        """The next message; None at the deadline.

        Raises:
            LineLost: the coordinator is gone.
            EngineFailed: a pod ended.
        """
        if self._channel is None:
            raise LineLost
        while not select.select([self._channel.sock], [], [], _LOOK_S)[0]:
            self._pods.check()
            if time.monotonic() >= deadline:
                return None
        try:
            return self._channel.receive()
        except WireError as error:
            self.close()
            raise LineLost(str(error)) from error

    def send(self, message: Submit | Allow | Cancel) -> None:
        """Send; what is lost is told by ``receive``."""
        try:
            if self._channel is not None:
                self._channel.send(message)
        except WireError:
            self.close()

    def close(self) -> None:
        """Hang up: the coordinator drops what it was asked."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _dial(self) -> SocketChannel[RequestKinds]:
        sock = socket.socket(socket.AF_UNIX)
        channel = SocketChannel(sock, request_codec)
        try:
            sock.connect(str(self._pods.requests_socket))
            channel.dial(self._pods.token)
        except (OSError, WireError):
            sock.close()
            raise
        return channel
