"""Leaders are found by their pods: on a real API server with the rights that the operator renders, and by a scripted one."""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from bireme.api.document import load
from bireme.names import Port
from bireme_operator.local.addresses import draw_address
from bireme_operator.render.owned import Owner
from bireme_operator.render.router import render_router
from bireme_router.discovery.cluster import Cluster
from bireme_router.discovery.pods import Pod, leaders_of, selector
from bireme_router.policies.readiness import why_pod_not
from tests.controlplane.cluster import ControlPlane
from tests.router.test_edge_keys_and_tls import certificate
from tests.support.router_process import Client, RouterProcess
from tests.support.stub_leader import TOKEN, StubLeader

DEPLOYMENT = """
apiVersion: bireme.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: demo, namespace: NAMESPACE}
spec: {replicas: 2, model: {source: {path: /models/m}, revision: "1"}}
"""
MERGE = {"content-type": "application/merge-patch+json"}


class Village:
    """Pods of one namespace, and a router that may only do what the operator renders for it."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self.api = plane.api
        self.core = f"/api/v1/namespaces/{namespace}"
        self.namespace = namespace
        owner = self.api.post(f"{self.core}/configmaps", json={"metadata": {"name": "owner"}}).raise_for_status().json()
        self.uid = owner["metadata"]["uid"]
        self.account = directory / "account"
        self._grant(plane)
        self.router = RouterProcess(directory)
        host, _, port = plane.url.removeprefix("https://").rpartition(":")
        self.router.environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        self.router.flags = [f"--pods={namespace}/demo", f"--service-account={self.account}", f"--tokens={directory}"]
        (directory / "0").write_text(TOKEN)
        (directory / "1").write_text(TOKEN)
        self.router.write_routes([])

    def _grant(self, plane: ControlPlane) -> None:
        owner = Owner("demo", self.namespace, self.uid)
        deployment = load(DEPLOYMENT.replace("NAMESPACE", self.namespace))
        groups = {"ServiceAccount": f"{self.core}/serviceaccounts"}
        for kind in ("Role", "RoleBinding"):
            base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
            groups[kind] = f"{base}/{kind.lower()}s"
        for made in render_router(owner, deployment.spec, image="i", token_secret="t"):
            if made["kind"] in groups:
                made["metadata"].pop("ownerReferences")
                self.api.post(groups[made["kind"]], json=made).raise_for_status()
        token = self.api.post(f"{self.core}/serviceaccounts/demo-router/token", json={"spec": {}}).raise_for_status()
        self.account.mkdir()
        (self.account / "token").write_text(token.json()["status"]["token"])
        (self.account / "ca.crt").write_bytes(plane.files.authority.read_bytes())

    async def pod(self, name: str, group: int, incarnation: int = 1, **labels: str) -> StubLeader:
        """A pod that runs and is ready, and the leader behind its address."""
        leader = StubLeader(group)
        leader.group, leader.incarnation = f"{self.uid}-{group}", incarnation
        host = draw_address()
        await leader.start(int(Port.HTTP), int(Port.ADMIN), host)
        self.make(name, host, group=str(group), incarnation=str(incarnation), **labels)
        return leader

    def make(self, name: str, host: str, **labels: str) -> None:
        """A pod that runs at ``host`` and is ready."""
        known = {"deployment": "demo", "role": "leader", "stage": "0"}
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": self.uid, "controller": True}
        meta = {
            "name": name,
            "labels": {f"bireme.dev/{key}": value for key, value in (known | labels).items()},
            "ownerReferences": [owner],
            "finalizers": ["bireme.dev/test"],
        }
        spec = {"containers": [{"name": "worker", "image": "i"}]}
        self.api.post(f"{self.core}/pods", json={"metadata": meta, "spec": spec}).raise_for_status()
        self.status(name, phase="Running", podIP=host, podIPs=[{"ip": host}])
        self.ready(name)

    def ready(self, name: str, status: str = "True") -> None:
        conditions = [{"type": kind, "status": status} for kind in ("ContainersReady", "Ready")]
        self.status(name, conditions=conditions)

    def status(self, name: str, **status: Any) -> None:
        url = f"{self.core}/pods/{name}/status"
        self.api.patch(url, json={"status": status}, headers=MERGE).raise_for_status()

    def change(self, name: str, **metadata: Any) -> None:
        url = f"{self.core}/pods/{name}"
        self.api.patch(url, json={"metadata": metadata}, headers=MERGE).raise_for_status()

    def delete(self, name: str) -> httpx.Response:
        return self.api.delete(f"{self.core}/pods/{name}").raise_for_status()


@pytest.fixture
async def village(api_server: ControlPlane, namespace: str, tmp_path: Path) -> AsyncIterator[Village]:
    made = Village(api_server, namespace, tmp_path)
    yield made
    if made.router.process is not None:
        await made.router.stop()
    for pod in made.api.get(f"{made.core}/pods").json()["items"]:
        made.change(pod["metadata"]["name"], finalizers=[])


async def until_group(client: Client, index: int, **expected: Any) -> None:
    async with asyncio.timeout(30):
        while True:
            groups = json.loads(await client.page("/admin/routes"))["groups"]
            group: dict[str, Any] = next((one for one in groups if one["index"] == index), {})
            if all(group.get(name) == value for name, value in expected.items()):
                return
            await asyncio.sleep(0.02)


async def test_t13_only_current_leaders_of_this_deployment_count_by_their_pods(village: Village) -> None:
    first = await village.pod("demo-0-0-a", 0)
    others = [
        await village.pod("demo-0-1-a", 0, role="stage", stage="1"),
        await village.pod("other-0-0-a", 1, deployment="other"),
    ]
    await village.router.start()
    client = Client(village.router.url)
    await client.until_page("/readyz", "1 of 1")
    second = await village.pod("demo-1-0-a", 1)
    await client.until_page("/readyz", "2 of 2")

    village.change("demo-1-0-a", labels={"bireme.dev/role": "retired"})
    await client.until_page("/readyz", "1 of 1")
    village.delete("demo-0-0-a")
    await until_group(client, 0, used=False, reason="its pod is being deleted")
    newer = await village.pod("demo-0-0-b", 0, incarnation=2)
    await client.until_page("/readyz", "1 of 1")
    assert (await client.ask()).status == 200
    assert [len(one.received) for one in (first, second, *others, newer)] == [0, 0, 0, 0, 1]

    village.ready("demo-0-0-b", "False")
    await until_group(client, 0, used=False, reason="its leader says Serving, but its pod is not Ready")
    village.ready("demo-0-0-b")
    await until_group(client, 0, used=True)
    await client.session.close()
    for leader in (first, second, newer, *others):
        await leader.stop()


async def is_known(here: Client, there: Client) -> bool:
    """Whether a key that is new and used up here is refused there, which is told of it a tenth of a second later."""
    key = {"authorization": f"Bearer {secrets.token_hex(16)}"}
    assert (await here.ask(headers=key)).status == 200
    await asyncio.sleep(0.2)
    return (await there.ask(headers=key)).status == 429


async def test_two_replicas_let_a_key_in_as_often_as_one(village: Village, tmp_path: Path) -> None:
    leader = await village.pod("demo-0-0-a", 0)
    limits = tmp_path / "limits.json"
    limits.write_text('{"v": 1, "default": {"requests_per_minute": 1}}')
    routers, clients = [], []
    for host in (draw_address(), draw_address()):
        village.make(f"router-{host.replace('.', '-')}", host, role="router")
        (tmp_path / host).mkdir()
        router = RouterProcess(tmp_path / host, [*village.router.flags, f"--host={host}", f"--limits={limits}"])
        router.flags = [*router.flags, f"--port={int(Port.ROUTER)}"]
        router.environment = village.router.environment
        router.write_routes([])
        await router.start()
        routers.append(router)
        clients.append(Client(router.url))
    async with asyncio.timeout(30):
        while not all("is heard" in router.log.read_text() for router in routers):
            await asyncio.sleep(0.02)
    for client in clients:
        await client.until_page("/readyz", "1 of 1")
    for here, there in (clients, clients[::-1]):
        async with asyncio.timeout(30):
            while not await is_known(here, there):
                continue
    for client, router in zip(clients, routers, strict=True):
        await client.session.close()
        await router.stop()
    await leader.stop()


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def listed(*names: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": [pod(name) for name in names]}


def pod(name: str, **status: Any) -> dict[str, Any]:
    labels = {"bireme.dev/group": "0", "bireme.dev/stage": "0", "bireme.dev/incarnation": "1"}
    owner = [{"uid": "u", "controller": True}]
    meta = {"name": name, "uid": f"uid-{name}", "labels": labels, "ownerReferences": owner}
    return {"metadata": meta, "status": {"phase": "Running", "podIP": "127.0.0.9", **status}}


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[Callable[[list[Any]], Awaitable[Cluster]]]:
    """An API server that answers each request with the next of a script; the last answer again and again."""
    runners: list[web.AppRunner] = []
    chain, key = certificate(tmp_path, "api")
    (tmp_path / "ca.crt").write_bytes(chain.read_bytes())
    (tmp_path / "token").write_text("t")

    async def serve(script: list[Any]) -> Cluster:
        async def answer(request: web.Request) -> web.Response:
            said = script.pop(0) if len(script) > 1 else script[0]
            if isinstance(said, int):
                return web.Response(status=said)
            if isinstance(said, list):
                return web.Response(body=b"".join(json.dumps(event).encode() + b"\n" for event in said))
            return web.json_response(said)

        app = web.Application()
        app.router.add_get("/api/v1/namespaces/ns/pods", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        runners.append(runner)
        port = str(runner.addresses[0][1])
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        return Cluster("ns", tmp_path, 0.1, place)

    yield serve
    for runner in runners:
        await runner.cleanup()


async def seen(cluster: Cluster, until: list[str]) -> list[list[str]]:
    """What the follower tells, up to a state."""
    states: list[list[str]] = []
    async with asyncio.timeout(20), aclosing(cluster.follow(selector("demo", "leader"))) as following:  # type: ignore[type-var]
        async for pods in following:
            names = [one.metadata.name for one in pods]
            if not states or states[-1] != names:
                states.append(names)
            if names == until:
                break
    return states


async def test_t13_a_lost_delete_is_healed_by_the_next_list(scripted: Any) -> None:
    cluster = await scripted([listed("a", "b"), [], listed("b")])
    assert await seen(cluster, ["b"]) == [["a", "b"], ["b"]]


async def test_t13_errors_and_gaps_of_the_watch_never_look_like_an_empty_cluster(scripted: Any) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    added = {"type": "ADDED", "object": pod("c")}
    deleted = {"type": "DELETED", "object": pod("a")}
    script = [listed("a"), [added, gone], 500, 403, listed("a", "c"), 410, listed("a", "c"), [deleted], listed("c")]
    assert await seen(await scripted(script), ["c"]) == [["a"], ["a", "c"], ["c"]]


def test_a_pod_is_a_leader_only_with_an_address_and_while_it_runs() -> None:
    def found(body: dict[str, Any]) -> list[tuple[str, bool, bool]]:
        import msgspec

        return [(one.route.pod, one.leaving, one.ready) for one in leaders_of([msgspec.convert(body, Pod)], Path("t"))]

    ready = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
    assert found(pod("a")) == [("a/uid-a", False, False)]
    assert found(pod("a", conditions=ready)) == [("a/uid-a", False, True)], (
        "a node controller's Ready=False is no proof"
    )
    assert found(pod("a", podIP="")) == []
    assert found(pod("a", phase="Failed")) == []
    assert found({**pod("a"), "metadata": {"name": "a"}}) == []


def test_a_pod_speaks_against_its_leader_only_when_it_lasts() -> None:
    assert why_pod_not(leaving=True, unready_for_s=None, serving_for_s=9.0)
    assert not why_pod_not(leaving=False, unready_for_s=None, serving_for_s=9.0)
    assert not why_pod_not(leaving=False, unready_for_s=60.0, serving_for_s=1.0), "a group that just came back"
    assert why_pod_not(leaving=False, unready_for_s=4.0, serving_for_s=60.0)
