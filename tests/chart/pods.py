"""A kubelet for what the chart makes: its pods' commands run as processes, with the pods' own accounts and files."""

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bireme.process import child_environment
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually
from tests.operator.rights import kubeconfig_of

_MODULES: Final = {"bireme-operator": ["-m", "bireme_operator.main"], "python3": []}
_KEY_DIR: Final = "/bireme/master-key/"


class ChartPod:
    """The one container of a pod spec as a process; its output is in ``log``."""

    def __init__(self, plane: ControlPlane, namespace: str, spec: dict[str, Any], directory: Path) -> None:
        directory.mkdir(parents=True)
        self.log = directory / "log"
        (container,) = spec["containers"]
        program, *more = container["command"]
        arguments = [_here(plane, namespace, spec, word, directory) for word in container["args"]]
        account = kubeconfig_of(plane, namespace, spec["serviceAccountName"], directory)
        environment = child_environment({**os.environ, "KUBECONFIG": str(account)})
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *_MODULES[program], *more, *arguments], env=environment, stdout=output, stderr=output
            )

    def await_log(self, words: str) -> None:
        """Wait until it has said ``words``."""
        eventually(lambda: self.process.poll() is not None or words in self.log.read_text())
        assert words in self.log.read_text(), self.log.read_text()

    def end(self) -> None:
        """End it as a kubelet does, and wait."""
        self.process.terminate()
        self.process.wait(timeout=30)


def _here(plane: ControlPlane, namespace: str, spec: dict[str, Any], argument: str, directory: Path) -> str:
    """Put in place of a pod's own what a process on this machine has: the Secret as a file, any free port."""
    name, _, value = argument.partition("=")
    if value.startswith(_KEY_DIR):
        secret = next(volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume)
        body = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}").raise_for_status().json()
        path = directory / "master-key"
        path.write_bytes(base64.b64decode(body["data"][value.removeprefix(_KEY_DIR)]))
        return f"{name}={path}"
    if name == "--probe-port":
        return f"{name}=0"
    return argument
