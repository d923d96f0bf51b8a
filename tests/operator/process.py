"""An operator as a process, started as a user would start it outside a cluster."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from bireme.process import child_environment


class OperatorProcess:
    """Runs from the start; the log has what it said."""

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
    ) -> None:
        self.log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "bireme_operator.main", f"--identity={name}"]
        # The Lease is the test's own in both cases.
        command += ["--all-namespaces", f"--lease-namespace={namespace}"] if cluster else [f"--namespace={namespace}"]
        command += [f"--master-key-file={key}", f"--lease-seconds={lease_seconds}", f"--probe-port={port}"]
        command += [f"--worker-image={image}", "--router-image=bireme-router:test"]
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
