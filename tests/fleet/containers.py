"""One container of a pod: prepared, started, probed, restarted with back-off, and ended within its grace period.

Each step looks at what the runtime has, so a kubelet that is started again goes on where the last one was stopped.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.controlplane.credentials import User, write_kubeconfig
from tests.fleet import names
from tests.fleet.actions import Inside, succeeds
from tests.fleet.api import ApiRefused, NodeApi, Object, Unreachable
from tests.fleet.environment import PULL_BACK_OFF, Launch, NoImage, command_line, environment, executable, own_words
from tests.fleet.probes import watch_health
from tests.fleet.processes import Process
from tests.fleet.runtime import Container, Sandbox
from tests.fleet.settings import Settings
from tests.fleet.sources import Sources, Unsatisfied
from tests.fleet.volumes import Paths

_RETRY_S = 0.3
_LEAST_GRACE_S = 2.0
_LOG_BYTES = 2048
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Place:
    """A pod on its node: what all of its containers share."""

    pod: Object
    sandbox: Sandbox
    api: NodeApi
    settings: Settings
    node: str
    base: dict[str, str]
    """Variables of every container on this node."""
    changed: Callable[[], None]
    deadline: float | None = None
    """When the containers of a pod on its way out are killed, by `time.monotonic`; None for a pod that stays."""
    launches: dict[str, Launch] = field(default_factory=dict)

    @property
    def sources(self) -> Sources:
        """What the pod may read of the cluster."""
        return Sources(self.api, self.pod, self.sandbox.ip, self.node)


async def keep(place: Place, container: Container) -> None:
    """Run a container until it must not start again."""
    while True:
        if container.process is None:
            if container.ended is not None:
                if not _restarts(place, container):
                    return
                await _back_off(place, container)
            await _start(place, container)
        await _attend(place, container)


def _restarts(place: Place, container: Container) -> bool:
    assert container.ended is not None
    if place.deadline is not None:
        return False
    policy = place.pod["spec"].get("restartPolicy", "Always")
    if policy == "Always" and container.name in place.sandbox.containers:
        return True
    return policy != "Never" and container.ended.code != 0


async def _back_off(place: Place, container: Container) -> None:
    assert container.ended is not None
    delay = container.next_delay(place.settings)
    left = container.ended.finished_at + delay - time.time()
    if left > 0:
        container.waiting = "CrashLoopBackOff"
        container.message = f"back-off {delay:g}s restarting failed container={container.name}"
        place.changed()
        await asyncio.sleep(left)


async def _start(place: Place, container: Container) -> None:
    launch = await _prepared(place, container)
    place.launches[container.name] = launch
    root = place.sandbox.root
    mark = f"{place.sandbox.mark}/{container.name}/{container.starts}"
    log = place.sandbox.log(container.name)
    container.process = Process(launch.command, launch.environment, root, log, mark)
    container.starts += 1
    container.started_at = time.time()
    container.waiting = container.message = ""
    place.changed()


async def _prepared(place: Place, container: Container) -> Launch:
    """Return what to execute, once everything that the container refers to is there."""
    while True:
        try:
            return await prepare(place, container.spec)
        except NoImage as error:
            container.waiting, container.message = PULL_BACK_OFF, str(error)
        except Unsatisfied as error:
            container.waiting, container.message = "CreateContainerConfigError", str(error)
        except names.Unresolved as error:
            container.waiting, container.message = "ContainerCreating", str(error)
        except (Unreachable, ApiRefused):
            pass
        place.changed()
        await asyncio.sleep(_RETRY_S)


async def prepare(place: Place, container: Object) -> Launch:
    """Return command and environment, with mount paths and host names replaced by what is behind them.

    Raises:
        NoImage: the fleet has no such image.
        Unsatisfied: something is referred to that is not there.
        Unresolved: a host name leads nowhere yet.
        Unreachable: the API server can't be asked.
    """
    own = await environment(container, place.sources)
    words = own_words(container, own)
    paths = Paths(container, place.sandbox)
    hosts = await _resolve(place, [*words, *own.values()])
    translate = partial(_translate, paths, hosts)
    variables = {name: translate(value) for name, value in own.items()}
    account = in_cluster_kubeconfig(container, paths, place)
    command = command_line(container, place.settings.images, [translate(word) for word in words])
    return Launch(executable(command), {**place.base, **account, **variables})


def in_cluster_kubeconfig(container: Object, paths: Paths, place: Place) -> dict[str, str]:
    """Return the KUBECONFIG of a container with a service account: its client can't find the token at the usual path."""
    if all(each["mountPath"] != _ACCOUNT for each in container.get("volumeMounts", [])):
        return {}
    user = User("account", token=Path(paths.translate(f"{_ACCOUNT}/token")).read_text(encoding="ascii"))
    file = place.sandbox.root / f"{container['name']}.kubeconfig"
    write_kubeconfig(file, url=place.api.url, authority=Path(paths.translate(f"{_ACCOUNT}/ca.crt")), user=user)
    host, _, port = place.api.url.removeprefix("https://").rpartition(":")
    return {"KUBECONFIG": str(file), "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


def _translate(paths: Paths, hosts: dict[str, str], text: str) -> str:
    for host in sorted(hosts, key=len, reverse=True):
        text = text.replace(host, hosts[host])
    return paths.translate(text)


async def _resolve(place: Place, texts: list[str]) -> dict[str, str]:
    namespace, subdomain = place.sandbox.namespace, place.pod["spec"].get("subdomain", "")
    found = {host for text in texts for host in names.hosts_in(text, namespace, subdomain)}
    return {host: await _address(place, host) for host in found}


async def _address(place: Place, host: str) -> str:
    hostname, service, namespace = names.split(host, place.sandbox.namespace)
    base = f"/api/v1/namespaces/{namespace}"
    try:
        behind = await place.api.get(f"{base}/services/{service}")
    except ApiRefused as refusal:
        raise names.Unresolved(f"no service {service} in {namespace}: {refusal}") from None
    pods = await place.api.get(f"{base}/pods")
    return names.address(hostname, behind, pods["items"])


async def _attend(place: Place, container: Container) -> None:
    """Probe a running container until its end, and note how it ended."""
    assert container.process is not None
    health = asyncio.create_task(_enforce_health(place, container))
    try:
        code = await container.process.wait()
    finally:
        health.cancel()
        await asyncio.wait({health})
    if not health.cancelled() and (error := health.exception()):
        raise error
    container.finish(code, _last_words(place, container, code))
    place.changed()


async def _enforce_health(place: Place, container: Container) -> None:
    inside = await _inside(place, container)
    await watch_health(container, inside, place.changed)
    grace = place.pod["spec"].get("terminationGracePeriodSeconds", 30)
    deadline = time.monotonic() + (container.spec.get("livenessProbe") or {}).get(
        "terminationGracePeriodSeconds", grace
    )
    if place.deadline is None:
        await _end_by(place, container, lambda: deadline)


async def stop(place: Place, container: Container) -> None:
    """End a container by the pod's deadline, which may come closer meanwhile."""
    assert place.deadline is not None
    await _end_by(place, container, lambda: place.deadline or 0.0)


async def _end_by(place: Place, container: Container, deadline: Callable[[], float]) -> None:
    process = container.process
    if process is None or not process.lives:
        return
    hook = (container.spec.get("lifecycle") or {}).get("preStop")
    if hook and deadline() > time.monotonic():
        inside = await _inside(place, container)
        await _bounded(asyncio.create_task(succeeds(hook, inside)), deadline)
    process.terminate()
    least = time.monotonic() + _LEAST_GRACE_S
    await _bounded(asyncio.create_task(process.wait()), lambda: max(deadline(), least))
    process.kill()
    await process.wait()


async def _bounded(work: asyncio.Task, deadline: Callable[[], float]) -> None:
    """Wait for ``work`` until the deadline, looking now and then whether it has come closer."""
    try:
        while not work.done() and (left := deadline() - time.monotonic()) > 0:
            await asyncio.wait({work}, timeout=min(left, _RETRY_S))
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _inside(place: Place, container: Container) -> Inside:
    assert container.process is not None
    if container.name not in place.launches:  # started by an earlier kubelet of this node
        place.launches[container.name] = await _prepared(place, container)
    launch = place.launches[container.name]
    ports = {each["name"]: each["containerPort"] for each in container.spec.get("ports", []) if "name" in each}
    log = place.sandbox.log(container.name)
    return Inside(place.sandbox.ip, ports, launch, container.process.mark, place.sandbox.root, log)


def _last_words(place: Place, container: Container, code: int) -> str:
    message = Paths(container.spec, place.sandbox).message()
    wanted = container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    if message or not wanted or code == 0:
        return message
    return place.sandbox.log(container.name).read_bytes()[-_LOG_BYTES:].decode(errors="replace")
