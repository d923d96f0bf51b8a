"""A real control plane on loopback: etcd, API server, controller manager and scheduler as children of this process.

Programs can be started one after another, so a test that only needs the API waits for nothing else. What is started is
up when `start` returns; everything ends with `close`, and with this process however it ends. Start it from the main
thread: the kernel ties a child's life to the thread that made it.
"""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx

from bireme.process import child_environment
from tests.controlplane.arguments import Files, Ports, Settings, arguments
from tests.controlplane.credentials import User, Users, extract_issuer, write_kubeconfig, write_signing_key
from tests.controlplane.programs import Program
from tests.support.ports import free_port

API_ONLY: Final = (Program.ETCD, Program.API_SERVER)
WHOLE: Final = (*API_ONLY, Program.CONTROLLER_MANAGER, Program.SCHEDULER)

_TETHER: Final = Path(__file__).with_name("tether.py")
_READY_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
# Below the range that the kernel gives to outgoing connections, so that none takes a port between choice and use.
_PORT_RANGE: Final = range(20_000, 32_000)


class NotReady(Exception):
    """A program ended or kept silent instead of getting ready; the message has the end of its log."""


class ControlPlane:
    """One control plane in one directory, from the first `start` to `close`."""

    def __init__(self, directory: Path, programs: Mapping[Program, Path], settings: Settings | None = None) -> None:
        self.files = Files(directory)
        self.users = Users()
        self._programs = programs
        self._settings = settings or Settings()
        self._ports = Ports(*(free_port(_PORT_RANGE) for _ in range(5)))
        self._connections = ExitStack()
        self._running: dict[Program, subprocess.Popen[bytes]] = {}
        self._write_files()

    @property
    def url(self) -> str:
        """Address of the API server."""
        return self._ports.api_url

    @property
    def running(self) -> Mapping[Program, subprocess.Popen[bytes]]:
        """The programs that were started and not stopped."""
        return MappingProxyType(self._running)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self.files.kubeconfig(self.users.admin.name)

    @cached_property
    def api(self) -> httpx.Client:
        """The administrator's connection to the API server, for requests as they are on the wire."""
        return self._connections.enter_context(self.client(self.users.admin))

    def client(self, user: User) -> httpx.Client:
        """Return a connection that speaks as ``user``; the API server must be up."""
        trusted = ssl.create_default_context(cafile=str(self.files.authority))
        headers = {"authorization": f"Bearer {user.token}"}
        return httpx.Client(base_url=self.url, headers=headers, verify=trusted, trust_env=False, timeout=60)

    def start(self, *programs: Program) -> None:
        """Start those of ``programs`` that do not run yet, and return when all of them work.

        Raises:
            NotReady: one of them ended, or was not ready in two minutes.
        """
        for program in programs:
            if program not in self._running:
                self._running[program] = self._spawn(program)
                if program in API_ONLY:  # each is what the next one needs
                    self._await(program)
                if program is Program.API_SERVER:
                    extract_issuer(self.files.certificates / "apiserver.crt", self.files.authority)
        for program in programs:
            self._await(program)

    def stop(self, *programs: Program, number: signal.Signals = signal.SIGTERM) -> None:
        """End ``programs`` with ``number`` and wait for it. They can be started again with their data."""
        ending = [self._running.pop(program) for program in programs]
        for process in ending:
            process.send_signal(number)
        for process in ending:
            process.wait(timeout=_READY_SECONDS)

    @contextmanager
    def changed(self, program: Program, settings: Settings) -> Iterator[None]:
        """Run one program with other settings for as long as the block lasts."""
        usual = self._settings
        try:
            self._restart(program, settings)
            yield
        finally:
            self._restart(program, usual)

    def _restart(self, program: Program, settings: Settings) -> None:
        if program in self._running:
            self.stop(program)
        self._settings = settings
        self.start(program)

    def close(self) -> None:
        """End everything at once; nothing of it is needed again, so nothing is asked to finish its work."""
        self._connections.close()
        self.stop(*self._running, number=signal.SIGKILL)

    def kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator, away from the user's own files and caches."""
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.files.root / "kube-cache"), "KUBERC": "off"}
        command: list[str | Path] = [self._programs[Program.KUBECTL], *words]
        environment = {**os.environ, **own}
        return subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)

    def _write_files(self) -> None:
        self.files.root.mkdir(parents=True, exist_ok=True)
        write_signing_key(self.files.signing_key)
        self.users.write_tokens(self.files.tokens)
        for user in self.users.all():
            path = self.files.kubeconfig(user.name)
            write_kubeconfig(path, url=self.url, authority=self.files.authority, user=user)

    def _spawn(self, program: Program) -> subprocess.Popen[bytes]:
        own = arguments(program, self.files, self._ports, self._settings)
        with self.files.log(program).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, _TETHER, self._programs[program], *own],
                env=child_environment({**self._settings.environment}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops them in order
            )

    def _await(self, program: Program) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        # Nothing secret is sent, and each program has made its own certificate.
        with httpx.Client(verify=False, trust_env=False, timeout=5) as client:
            while not _answers(client, self._ports.health_url(program)):
                if self._running[program].poll() is not None:
                    code = self._running.pop(program).returncode
                    raise NotReady(f"{program} ended with {code}: {self._end_of_log(program)}")
                if time.monotonic() > deadline:
                    raise NotReady(f"{program} not ready in {_READY_SECONDS:.0f} s: {self._end_of_log(program)}")
                time.sleep(_POLL_SECONDS)

    def _end_of_log(self, program: Program) -> str:
        lines = self.files.log(program).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["", *lines[-12:]])


@contextmanager
def control_plane(
    directory: Path,
    programs: Mapping[Program, Path],
    settings: Settings | None = None,
    *,
    parts: Sequence[Program] = WHOLE,
) -> Iterator[ControlPlane]:
    """Run a control plane of ``parts`` for as long as the block lasts."""
    plane = ControlPlane(directory, programs, settings)
    try:
        plane.start(*parts)
        yield plane
    finally:
        plane.close()


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
