"""What a test has of the cluster: kubectl, helm and docker as programs, and what they say as plain documents."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import yaml

from bireme.names import Annotation, Label
from tests.controlplane.polling import eventually
from tests.e2e.commands import CommandFailed, run

READY_TO_TEST: Final = "BIREME_E2E"
"""The kubeconfig, set for the tests by `make e2e`: without it there is no cluster and they are not collected."""
NEXT_WORKER: Final = "bireme-worker:next"
"""The worker's image under another name."""
URL: Final = "http://127.0.0.1:30080"
"""Where the node port of kind-config.yaml answers on this machine."""
NODE_PORT: Final = 30080
DEPLOYMENT: Final = "smollm2"

Answer = TypeVar("Answer")
Document = dict[str, Any]
Place = tuple[int, int]
"""Group and stage."""


class Cluster:
    """The cluster of `make e2e`, found by the environment like a user's."""

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float = 300) -> str:
        """Run kubectl and return what it prints.

        Raises:
            CommandFailed: it said no.
        """
        return run("kubectl", *words, stdin=stdin, timeout=timeout)

    def get(self, *words: str) -> Document:
        """`kubectl get` as a document."""
        return dict(json.loads(self.kubectl("get", *words, "--output=json")))

    def items(self, *words: str) -> list[Document]:
        """`kubectl get` of a list."""
        return list(self.get(*words)["items"])

    def apply(self, *documents: Document, namespace: str = "default") -> None:
        """`kubectl apply` of documents."""
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))

    def patch(self, spec: Document, name: str = DEPLOYMENT, namespace: str = "default") -> None:
        """Change fields of a deployment's spec."""
        body = json.dumps({"spec": spec})
        self.kubectl("patch", "infd", name, "-n", namespace, "--type=merge", "-p", body)

    def docker(self, *words: str) -> str:
        """Run docker: a node is a container."""
        return run("docker", *words, timeout=120)

    def status(self, name: str = DEPLOYMENT, namespace: str = "default") -> Document:
        """The deployment's status, empty until there is one for the newest spec."""
        body = self.get("infd", name, "-n", namespace)
        status: Document = body.get("status") or {}
        return status if status.get("observedGeneration") == body["metadata"]["generation"] else {}

    def condition(self, kind: str, name: str = DEPLOYMENT, namespace: str = "default") -> Document:
        """One condition, of the newest spec."""
        found: list[Document] = self.status(name, namespace).get("conditions") or []
        return next((one for one in found if one["type"] == kind), {"status": "Unknown"})

    def await_ready(self, within: float = 240, name: str = DEPLOYMENT, namespace: str = "default") -> None:
        """Wait until every wanted group serves what is wanted, and nothing is under way."""
        self.eventually(lambda: settled(self.status(name, namespace)), within, name, namespace)

    def eventually(
        self, ask: Callable[[], Answer | None], within: float, name: str = DEPLOYMENT, namespace: str = "default"
    ) -> Answer:
        """Wait until ``ask`` says yes, and return that; a failure shows what the deployment says of itself."""
        try:
            return eventually(ask, within=within)
        except AssertionError as error:
            story = self.kubectl("get", "infd", name, "-n", namespace, "--output=yaml")
            pods = self.kubectl("get", "pods", "-A", "-o", "wide")
            raise AssertionError(f"{error}\n{story}\n{pods}") from error

    def groups(self, name: str = DEPLOYMENT, namespace: str = "default") -> dict[int, Document]:
        """The groups as the status tells them."""
        return {one["index"]: one for one in self.status(name, namespace).get("groups") or ()}

    def stages(self, name: str = DEPLOYMENT, namespace: str = "default") -> dict[Place, Document]:
        """The living stage pods; of a stage that is there twice, the newest incarnation."""
        selector = f"{Label.DEPLOYMENT}={name},{Label.STAGE}"
        pods = self.items("pods", "-n", namespace, "-l", selector)
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        living.sort(key=lambda pod: int(pod["metadata"]["labels"][Label.INCARNATION]))
        return {place_of(pod): pod for pod in living}

    def uids(self, name: str = DEPLOYMENT, namespace: str = "default") -> dict[Place, str]:
        """Which pod is which stage."""
        return {place: pod["metadata"]["uid"] for place, pod in self.stages(name, namespace).items()}

    def restarts(self) -> dict[Place, int]:
        """How often the kubelet started each stage anew."""
        return {
            place: sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))
            for place, pod in self.stages().items()
        }

    def quiet_node(self) -> tuple[str, frozenset[Place]]:
        """A worker node with stages of one group only and neither router nor operator, and which stages these are.

        Where earlier tests have left none, the groups are made anew, which spreads them.
        """
        while not (found := self._quiet_nodes()):
            self.restart()
        return min(found.items(), key=lambda item: (len(item[1]), item[0]))

    def restart(self) -> None:
        """Have all groups made anew, and wait for that: a status that is older than the wish says nothing of it."""
        wish = str(time.time())
        self.kubectl("annotate", "infd", DEPLOYMENT, f"{Annotation.RESTART}={wish}", "--overwrite")

        def anew() -> bool:
            status = self.status()
            return status.get("restart") == wish and settled(status)

        self.eventually(anew, within=300)

    def _quiet_nodes(self) -> dict[str, frozenset[Place]]:
        by_node: dict[str, set[Place]] = {}
        for place, pod in self.stages().items():
            by_node.setdefault(pod["spec"]["nodeName"], set()).add(place)
        others = {
            pod["spec"].get("nodeName")
            for pod in self.items("pods", "-A", "-l", "app.kubernetes.io/component in (router, operator)")
        }
        return {
            node: frozenset(places)
            for node, places in by_node.items()
            if node not in others and len({group for group, _ in places}) == 1
        }

    @contextmanager
    def cut_off(self, node: str) -> Iterator[None]:
        """Let nothing pass between the pods of this node and all others; its kubelet reaches the API server as before."""
        pods = self.get("node", node)["spec"]["podCIDR"]
        rules = [("-s", pods, "-o", "eth0", "-j", "DROP"), ("-d", pods, "-i", "eth0", "-j", "DROP")]
        for rule in rules:
            self.docker("exec", node, "iptables", "-I", "FORWARD", *rule)
        try:
            yield
        finally:
            for rule in rules:
                self.docker("exec", node, "iptables", "-D", "FORWARD", *rule)

    def node_ready(self, node: str) -> bool:
        """Whether Kubernetes calls the node ready."""
        conditions = self.get("node", node)["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def settled(status: Document) -> bool:
    """Whether a status says that all is as it is wanted."""
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return conditions.get("Ready") == "True" and conditions.get("Reconciling") == "False"


def worker_image(name: str | None) -> Document:
    """The change of a spec that gives stages another image, or (none) the operator's own again."""
    return {"template": {"spec": {"containers": [{"name": "worker", "image": name}] if name else None}}}


def place_of(pod: Mapping[str, Any]) -> Place:
    """Group and stage of a stage pod."""
    labels = pod["metadata"]["labels"]
    return int(labels[Label.GROUP_INDEX]), int(labels[Label.STAGE])


def refused(ask: Callable[[], object]) -> str:
    """What the server says when it refuses ``ask``; empty when it does not."""
    try:
        ask()
    except CommandFailed as error:
        return str(error)
    return ""


def environment(kubeconfig: str) -> dict[str, str]:
    """What tells the tests where the cluster is."""
    return {READY_TO_TEST: kubeconfig}


@dataclass
class Forward:
    """`kubectl port-forward` to a Service, for as long as it is entered."""

    target: str
    port: int
    namespace: str = "default"
    url: str = ""
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = ["kubectl", "port-forward", "-n", self.namespace, self.target, f":{self.port}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()  # Forwarding from 127.0.0.1:40000 -> 8080
        self.url = f"http://{said.split()[2]}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate()
