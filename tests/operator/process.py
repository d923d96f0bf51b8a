"""An operator as a process, started as a user would start it outside a cluster."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bireme.process import child_environment
from tests.controlplane.polling import eventually

_PORT = re.compile(r"/healthz and /metrics are served on port (\d+)")


class OperatorProcess:
    """Runs from the start; the log has what it said. ``wrapper``: what of Python runs the module, such as a profiler.

    ``arguments`` are further ones of its command line.
    """

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        key: Path,
        log: Path,
        *,
        name: str,
        image: str,
        cluster: bool,
        lease_seconds: int,
        wrapper: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        self.log = log
        self._said_before = log.stat().st_size if log.exists() else 0
        command = [sys.executable, *wrapper, "-m", "bireme_operator.main", f"--identity={name}"]
        # The Lease is the test's own in both cases.
        command += ["--all-namespaces", f"--lease-namespace={namespace}"] if cluster else [f"--namespace={namespace}"]
        command += [f"--master-key-file={key}", f"--lease-seconds={lease_seconds}", "--probe-port=0"]
        command += [f"--worker-image={image}", "--router-image=bireme-router:test", *arguments]
        environment = child_environment({**os.environ, "KUBECONFIG": str(kubeconfig)})
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    @property
    def url(self) -> str:
        """Where it answers probes and scrapes; waits until it does."""

        def port() -> str | None:
            found = _PORT.search(self.log.read_bytes()[self._said_before :].decode(errors="replace"))
            return found and found[1]

        return f"http://127.0.0.1:{eventually(port)}"

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a sample now, None while there is no such series."""
        page = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=60).raise_for_status().text
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None
