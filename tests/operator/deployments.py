"""Makes, changes and reads the InferenceDeployments and pods of one namespace, as they are on the wire."""

import json
import secrets
from dataclasses import dataclass
from typing import Any

from bireme.names import Label
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually

MERGE = {"content-type": "application/merge-patch+json"}


@dataclass(frozen=True)
class Deployments:
    """See the module."""

    plane: ControlPlane
    namespace: str

    @property
    def url(self) -> str:
        return f"/apis/bireme.dev/v1alpha1/namespaces/{self.namespace}/inferencedeployments"

    def create(self, name: str = "demo", replicas: int = 1, stages: int = 2, **spec: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "bireme.dev/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "model": {"source": {"path": "/models/m"}, "revision": "one"},
                "parallelism": {"pipeline": stages},
                "rollout": {"drainTimeoutSeconds": 5},
                **spec,
            },
        }
        made = self.plane.api.post(self.url, json=body)
        assert made.status_code == 201, made.text
        return dict(made.json())

    def change(self, name: str = "demo", **spec: Any) -> None:
        changed = self.plane.api.patch(f"{self.url}/{name}", json={"spec": spec}, headers=MERGE)
        assert changed.status_code == 200, changed.text

    def scale(self, replicas: int, name: str = "demo", **query: str) -> None:
        """Change the number of groups as `kubectl scale` and a HorizontalPodAutoscaler do."""
        change = {"spec": {"replicas": replicas}}
        url = f"{self.url}/{name}/scale"
        self.plane.api.patch(url, params=query, json=change, headers=MERGE).raise_for_status()

    def annotate(self, key: str, value: str, name: str = "demo") -> None:
        change = {"metadata": {"annotations": {key: value}}}
        self.plane.api.patch(f"{self.url}/{name}", json=change, headers=MERGE).raise_for_status()

    def events(self, reason: str) -> list[str]:
        """What events of this reason say."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = self.plane.api.get(path).raise_for_status().json()["items"]
        return [event["note"] for event in found if event["reason"] == reason]

    def losses(self) -> list[str]:
        """What was told of lost parts, but for leaders that were heard and then fell silent: a busy machine does that."""
        return [note for note in self.events("GroupLostPart") if "WorkerUnreachable" not in note]

    def lease(self) -> dict[str, Any]:
        """The Lease of the operators of this namespace."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/bireme-operator"
        return dict(self.plane.api.get(path).raise_for_status().json())

    def free_lease(self) -> None:
        """Let the next operator act at once: who held the Lease is dead and does not wait for anything."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/bireme-operator"
        self.plane.api.patch(path, json={"spec": {"holderIdentity": ""}}, headers=MERGE).raise_for_status()

    def evicted(self, pod: dict[str, Any]) -> None:
        """Report what a kubelet reports that has evicted a pod: the pod has failed, with a word about why."""
        url = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
        self.plane.api.patch(url, json={"status": status}, headers=MERGE).raise_for_status()

    def get(self, name: str = "demo") -> dict[str, Any]:
        return dict(self.plane.api.get(f"{self.url}/{name}").raise_for_status().json())

    def delete(self, name: str = "demo") -> None:
        self.plane.api.delete(f"{self.url}/{name}").raise_for_status()

    def condition(self, kind: str, name: str = "demo") -> dict[str, Any]:
        conditions = self.get(name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {"status": "Missing"})

    def await_condition(self, kind: str, status: str = "True", name: str = "demo") -> dict[str, Any]:
        """Wait until a condition of the present generation has this status."""

        def holds() -> dict[str, Any] | None:
            body = self.get(name)
            conditions = {one["type"]: one for one in body.get("status", {}).get("conditions", [])}
            found: dict[str, Any] = conditions.get(kind, {})
            current = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
            return found if current and found.get("status") == status else None

        return eventually(holds)

    def await_ready(self, name: str = "demo") -> dict[str, Any]:
        """Wait until the deployment is ready in its present generation; the status that says so.

        The next one may say otherwise: a leader that a busy machine keeps silent for seconds counts as lost till then.
        """

        def ready() -> dict[str, Any] | None:
            body = self.get(name)
            status: dict[str, Any] = body.get("status", {})
            conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
            current = status.get("observedGeneration") == body["metadata"]["generation"]
            return status if current and conditions.get("Ready") == "True" else None

        return eventually(ready)

    def await_event(self, reason: str, words: str = "") -> list[str]:
        """Wait for an event of this reason that says ``words``; events are posted beside what they are about."""
        return eventually(lambda: [note for note in self.events(reason) if words in note])

    def await_budgets(self, groups: int) -> None:
        """Wait until the Eviction API spares so many groups.

        Their budgets are made after they serve, and an eviction of a pod that is not yet known as ready is allowed.
        """
        url = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"

        def spared() -> bool:
            found = [one.get("status", {}) for one in self.plane.api.get(url).raise_for_status().json()["items"]]
            return len(found) == groups and all(
                0 < one.get("desiredHealthy", 0) <= one["currentHealthy"] for one in found
            )

        eventually(spared)

    def pods(self, name: str = "demo") -> list[dict[str, Any]]:
        """The stage pods, those on their way out included."""
        return self._pods(f"{Label.DEPLOYMENT}={name},{Label.STAGE},{Label.STAGE}!=spare")

    def spares(self, name: str = "demo") -> list[dict[str, Any]]:
        """The pods that stand by, those on their way out included."""
        return self._pods(f"{Label.DEPLOYMENT}={name},{Label.STAGE}=spare")

    def _pods(self, selector: str) -> list[dict[str, Any]]:
        return list(
            self.plane.api.get(self._pods_url, params={"labelSelector": selector}).raise_for_status().json()["items"]
        )

    @property
    def _pods_url(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def version(self) -> str:
        """The present version of the pods, for `made_since`."""
        return str(self.plane.api.get(self._pods_url).raise_for_status().json()["metadata"]["resourceVersion"])

    def _mark(self, pod: dict[str, Any], mark: str) -> bool:
        """Whether the pod is there to be marked."""
        url = f"{self._pods_url}/{pod['metadata']['name']}"
        marked = self.plane.api.patch(url, json={"metadata": {"annotations": {"made-since": mark}}}, headers=MERGE)
        return marked.status_code == 200

    def made_since(self, version: str) -> list[dict[str, Any]]:
        """Every stage pod that was made since, in order, however short it lived: the server remembers."""
        made, end = [], secrets.token_hex(8)
        # To change a pod between the two halves of its deletion is to delete it: 200, and nothing was written.
        staying = sorted(self.pods(), key=lambda pod: "deletionTimestamp" in pod["metadata"])
        assert any(self._mark(pod, end) for pod in staying), "no pod stays long enough to be marked"
        query = {"watch": "1", "resourceVersion": version, "labelSelector": str(Label.STAGE)}
        with self.plane.api.stream("GET", self._pods_url, params=query) as told:
            for event in map(json.loads, told.iter_lines()):
                if event["type"] == "ADDED":
                    made.append(event["object"])
                if event["object"]["metadata"].get("annotations", {}).get("made-since") == end:
                    return made
        raise AssertionError("the watch has ended before it came to the present")

    def living(self, name: str = "demo") -> dict[tuple[int, int], dict[str, Any]]:
        """The pods that stay, by group and stage."""
        pods = [pod for pod in self.pods(name) if "deletionTimestamp" not in pod["metadata"]]
        placed = {(int(label(pod, Label.GROUP_INDEX)), int(label(pod, Label.STAGE))): pod for pod in pods}
        assert len(placed) == len(pods), "a stage has two pods"
        return placed

    def incarnation(self, group: int, stage: int, name: str = "demo") -> str:
        """The incarnation of a stage's pod, empty while there is none."""
        pod = self.living(name).get((group, stage))
        return "" if pod is None else label(pod, Label.INCARNATION)

    def is_replaced_first(self, group: int, name: str = "demo") -> bool:
        """Whether the group still stays, or goes after a younger one has served.

        Not by who serves now: that is what is known of leaders, and a busy machine can keep one silent for seconds.
        """
        stays = any(index == group for index, _ in self.living(name))
        return stays or any(one["index"] > 1 and one.get("epoch") for one in self.get(name)["status"]["groups"])

    def uids(self, name: str = "demo") -> dict[tuple[int, int], str]:
        return {place: pod["metadata"]["uid"] for place, pod in self.living(name).items()}

    def delete_pod(self, pod: dict[str, Any], grace: int = 0, propagation: str = "Background") -> None:
        url = f"{self._pods_url}/{pod['metadata']['name']}"
        how = {"gracePeriodSeconds": grace, "propagationPolicy": propagation}
        self.plane.api.request("DELETE", url, json=how).raise_for_status()


def label(pod: dict[str, Any], name: str) -> str:
    return str(pod["metadata"]["labels"][name])
