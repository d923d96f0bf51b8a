"""A deployment on a Kubernetes cluster, read and asked as any other client would: the object, its pods, its events.

Everything here is asked with the rights of whoever calls, through the operator's own client; nothing needs the operator
to be reachable. The verbs are sync, the client is not, so one event loop is run for as long as the verb lasts.
"""

import argparse
import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, TypeVar

from bireme.api import InvalidDeployment, parse
from bireme.cli.errors import NOT_RUNNING, Refused, Unreachable
from bireme.cli.story import Told, read_note, seconds
from bireme.cli.target import Content, PastRevision, Process
from bireme.names import Annotation, Label, Port
from bireme_operator.kube.access import Access, find_access
from bireme_operator.kube.client import Kube, Manager
from bireme_operator.kube.errors import Conflict, KubeError, NotFound, Unavailable
from bireme_operator.kube.resources import DEPLOYMENTS, EVENTS, PODS, REVISIONS
from bireme_operator.plan.rendering import Rendering
from bireme_operator.render.revisions import ROLE
from bireme_operator.shell.records import record_of

T = TypeVar("T")

_TRIES: Final = 5
_ROLLED_BACK: Final = ("model", "parallelism", "engine", "template")
"""What pods and checkpoint depend on; policies stay as they are now."""


class Cluster:
    """One API server. ``namespace`` is the one that is meant."""

    def __init__(self, kube: Kube, access: Access, namespace: str, loop: asyncio.Runner) -> None:
        self.kube = kube
        self.namespace = namespace or access.namespace
        self._server = access.server
        self._loop = loop

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Ask the server.

        Raises:
            Unreachable: it does not answer.
            Refused: it says no; the message is its own.
        """
        try:
            return self._loop.run(work)
        except Unavailable as error:
            raise Unreachable(f"no cluster answers at {self._server}: {error}") from None
        except KubeError as error:
            raise Refused(str(error), NOT_RUNNING) from None


@contextmanager
def reached(arguments: argparse.Namespace) -> Iterator[Cluster]:
    """Connect to the cluster that is meant.

    Raises:
        Refused: no cluster is configured.
    """
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        try:
            access = loop.run(find_access(arguments.kubeconfig, arguments.context))
            kube = loop.run(stack.enter_async_context(access.connection()))
            yield Cluster(kube, access, getattr(arguments, "namespace", ""), loop)
        except KubeError as error:
            raise Refused(str(error), NOT_RUNNING) from None
        finally:
            loop.run(stack.aclose())


class ClusterTarget:
    """See `bireme.cli.target.Target`."""

    poll_s = 0.5

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    @classmethod
    def find(cls, cluster: Cluster, name: str | None) -> "ClusterTarget":
        """Return the deployment of that name, or the only one of the namespace.

        Raises:
            Refused: there is none, or more than one.
        """
        found = cluster.ask(_list(cluster))
        names = sorted(one["metadata"]["name"] for one in found)
        chosen = [one for one in names if one == name] if name else names
        if len(chosen) > 1:
            raise Refused(f"name one of {', '.join(chosen)}")
        if not chosen:
            what = f"InferenceDeployment named {name}" if name else "InferenceDeployment"
            others = f", only {', '.join(names)}" if names else "; `kubectl get infd -A` lists all of them"
            raise Refused(f"no {what} is in namespace {cluster.namespace}{others}", NOT_RUNNING)
        return cls(cluster, chosen[0])

    @property
    def where(self) -> str:
        """Namespace and name."""
        return f"{self._cluster.namespace}/{self._name}"

    def read(self) -> Content:
        """The object, without what only the server and the operator can read."""
        content = self._cluster.ask(self._get())
        content["metadata"].pop("managedFields", None)
        (content.get("status") or {}).pop("memory", None)
        return content

    def check_alive(self) -> None:
        """Return: what there is in a cluster, `read` tells."""

    def processes(self, content: Content) -> Sequence[Process]:  # noqa: ARG002  # a laptop's are in its content
        """The stage pods."""
        selector = f"{Label.DEPLOYMENT}={self._name},{Label.STAGE}"
        found = self._cluster.ask(self._cluster.kube.list(PODS, self._cluster.namespace, selector))["items"]
        views = [record.view for record in map(record_of, found) if record is not None]
        return [
            Process(
                view.group,
                view.stage,
                view.name,
                "Deleting" if view.deleting else view.phase.value,
                view.node,
                restarts=view.restarts,
                more=view.address,
            )
            for view in sorted(views, key=lambda view: (view.group, view.stage, view.incarnation))
        ]

    def endpoint(self, content: Content) -> str:
        """The router's Service."""
        port = (content["spec"].get("router") or {}).get("port", int(Port.ROUTER))
        return f"http://{self._name}-router.{self._cluster.namespace}:{port}/v1"

    def told(self) -> Sequence[Told]:
        """The events that the server still has."""
        events = self._cluster.ask(self._cluster.kube.list(EVENTS, self._cluster.namespace))["items"]
        mine = [one for one in events if _is_about(one, self._name) and one.get("eventTime")]
        mine.sort(key=lambda one: str(one["eventTime"]))
        return [
            told for one in mine for told in read_note(seconds(one["eventTime"]), one["reason"], one.get("note", ""))
        ]

    def details(self) -> Sequence[str]:
        """What a cluster tells, stands in status and events."""
        return [f"More: kubectl describe infd {self._name} -n {self._cluster.namespace}"]

    def restart(self, value: str) -> None:
        """Write the annotation."""
        self._change({"metadata": {"annotations": {Annotation.RESTART.value: value}}})

    def pause(self) -> None:
        """Change the spec."""
        self._change({"spec": {"paused": True}})

    def resume(self, value: str) -> None:
        """Write the annotation, and change the spec where it is paused."""
        spec = {"spec": {"paused": False}} if self.read()["spec"].get("paused") else {}
        self._change({"metadata": {"annotations": {Annotation.RESUME.value: value}}, **spec})

    def reload(self, path: str, revision: str, mode: str) -> None:
        """Change revision and path in the spec.

        Raises:
            Refused: the name belongs to other weights.
        """
        model = self.read()["spec"]["model"]
        # Of whichever volume it is; where it is none, the path is the whole source.
        source: dict[str, Any] = {kind: {**of, "path": path} for kind, of in model["source"].items() if kind != "path"}
        source = source or {"path": path}
        if model["revision"] == revision:
            if model["source"] == source:
                raise Refused("the spec asks for it already; what failed is tried again under another --revision")
            raise Refused(f"revision {revision} names {model['source']}: give other weights another --revision")
        annotations = {Annotation.RELOAD_MODE.value: mode}
        spec = {"model": {"revision": revision, "source": source}}
        self._change({"metadata": {"annotations": annotations}, "spec": spec})

    def revisions(self) -> Sequence[PastRevision]:
        """The ControllerRevisions."""
        wanted = f"{self._name}-{_key(self.read())}"
        return [
            PastRevision(
                int(one["revision"]),
                one["metadata"]["name"].removeprefix(f"{self._name}-"),
                one["data"]["spec"]["model"]["revision"],
                one["data"]["spec"]["model"]["source"],
                wanted=one["metadata"]["name"] == wanted,
            )
            for one in self._revisions()
        ]

    def roll_back(self, number: int) -> None:
        """Write what pods and checkpoint depend on as it was then."""
        [then] = [one["data"]["spec"] for one in self._revisions() if int(one["revision"]) == number]
        self._cluster.ask(self._rewrite({key: then[key] for key in _ROLLED_BACK if key in then}))

    def _revisions(self) -> list[Content]:
        selector = f"{Label.DEPLOYMENT}={self._name},{Label.ROLE}={ROLE}"
        found = self._cluster.ask(self._cluster.kube.list(REVISIONS, self._cluster.namespace, selector))["items"]
        uid = self.read()["metadata"]["uid"]
        mine = [one for one in found if any(o["uid"] == uid for o in one["metadata"].get("ownerReferences") or ())]
        return sorted(mine, key=lambda one: int(one["revision"]))

    def _change(self, change: Content) -> None:
        kube, namespace = self._cluster.kube, self._cluster.namespace
        self._cluster.ask(kube.patch(DEPLOYMENTS, namespace, self._name, change, manager=Manager.COMMAND_LINE))

    async def _get(self) -> Content:
        return await self._cluster.kube.get(DEPLOYMENTS, self._cluster.namespace, self._name)

    async def _rewrite(self, spec: Content) -> None:
        """Replace whole fields of the spec: a merge would keep what the old one did not have."""
        for left in reversed(range(_TRIES)):
            body = await self._get()
            body["spec"] = {key: value for key, value in body["spec"].items() if key not in _ROLLED_BACK} | spec
            try:
                await self._cluster.kube.replace(body, manager=Manager.COMMAND_LINE)
            except Conflict:
                if not left:
                    raise
            else:
                return


async def _list(cluster: Cluster) -> list[Content]:
    try:
        found: list[Content] = (await cluster.kube.list(DEPLOYMENTS, cluster.namespace))["items"]
    except NotFound:
        raise KubeError("the cluster knows no InferenceDeployments: kubectl apply -f crds/") from None
    return found


def _is_about(event: Content, name: str) -> bool:
    regarding = event.get("regarding") or {}
    return (regarding.get("kind"), regarding.get("name")) == (DEPLOYMENTS.kind, name)


def _key(content: Content) -> str:
    """The rendering that is wanted now; empty where this release can't read what another wrote."""
    try:
        deployment = parse({key: value for key, value in content.items() if key != "status"})
    except InvalidDeployment:
        return ""
    return Rendering.of(deployment.spec, deployment.model_name).key
