"""The stage pods: bare, one per stage, made once and never changed.

The template wins wherever it can: image, resources, volumes, affinity, sidecars. What a stage's identity and recovery
hang on stays ours, and a template that asks for it is refused, because nothing is accepted and ignored.
"""

from collections.abc import Mapping
from typing import Any, Final

from bireme.api.deployment import Spec
from bireme.api.engine import EngineType
from bireme.api.local import WORKER_CONTAINER, is_reserved
from bireme.api.model import ModelSource
from bireme.names import Env, Label, Port
from bireme_operator.plan.actions import CreatePod
from bireme_operator.plan.paths import MODEL_MOUNT, SHARDS_MOUNT
from bireme_operator.plan.places import HOSTNAME
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.gang import gang_of_pod
from bireme_operator.render.merge import entries, keys, merge
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.security import CONTAINER_SECURITY, POD_SECURITY

STATE_DIR: Final = "/bireme/state"
TOKEN_DIR: Final = "/bireme/token"  # noqa: S105  # a path
TOKEN_FILE: Final = "token"  # noqa: S105  # a name
COMPONENT: Final = "app.kubernetes.io/component"
"""By this label the Service of the stages finds them: without it none has a host name."""
LEADER: Final = "leader"
STAGE: Final = "stage"
AFTER_DRAIN_S: Final = 30
"""What a pod gets on top of the drain timeout to hand over and to end its ranks."""

_OURS: Final = (
    "restartPolicy",
    "hostname",
    "subdomain",
    "automountServiceAccountToken",
    "terminationGracePeriodSeconds",
)
_LABEL_PREFIX: Final = "bireme.dev/"


def service_name(owner: Owner) -> str:
    """Return the headless Service in which all stages have their host names."""
    return f"{owner.name}-stages"


def host_name(owner: Owner, group: int, stage: int) -> str:
    """Return a host name that all incarnations of a stage share."""
    return f"{owner.name}-{group}-{stage}"


def render_pod(made: CreatePod, owner: Owner, spec: Spec, *, token_secret: str) -> Object:
    """Return the manifest of one stage pod.

    Raises:
        InvalidTemplate: `spec.template` sets what Bireme decides.
    """
    template = spec.template
    refuse_what_is_ours(template.metadata, template.spec)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(owner, made.name, LEADER if made.stage == 0 else STAGE, _labels(made)),
        "spec": _spec(made, owner, spec, token_secret),
    }
    merged: Object = merge(pod, {"metadata": template.metadata, "spec": template.spec})
    return merge(merged, gang_of_pod(made, owner, spec))  # type: ignore[no-any-return]


def refuse_what_is_ours(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    """Refuse a template that sets what a stage's identity and recovery hang on.

    Raises:
        InvalidTemplate: it does; the message says what to remove.
    """
    ours = [f"spec.template.spec.{key}" for key in _OURS if key in spec]
    ours += [f"spec.template.metadata.{key}" for key in meta if key not in {"labels", "annotations"}]
    labels = [key for key in keys(meta.get("labels")) if key.startswith(_LABEL_PREFIX) or key == COMPONENT]
    ours += [f"spec.template.metadata.labels[{key}]" for key in labels]
    for container in entries(spec.get("containers")):
        if container.get("name") == WORKER_CONTAINER:
            ours += [f"env {entry['name']}" for entry in entries(container.get("env")) if _is_ours(entry)]
    if ours:
        raise InvalidTemplate(f"remove {', '.join(ours)} from spec.template: Bireme decides it itself")


def _is_ours(entry: Mapping[str, Any]) -> bool:
    return is_reserved(str(entry.get("name", "")))


def _labels(made: CreatePod) -> dict[str, str]:
    return {
        COMPONENT: WORKER_CONTAINER,
        Label.GROUP_INDEX.value: str(made.group),
        Label.STAGE.value: str(made.stage),
        Label.INCARNATION.value: str(made.incarnation),
        Label.REVISION.value: made.revision,
        Label.MODEL_REVISION.value: made.model_revision,
    }


def _spec(made: CreatePod, owner: Owner, spec: Spec, token_secret: str) -> Object:
    return {
        "restartPolicy": "OnFailure",
        "hostname": host_name(owner, made.group, made.stage),
        "subdomain": service_name(owner),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds + AFTER_DRAIN_S,
        "securityContext": POD_SECURITY,
        # The taint manager must not evict healthy groups behind an API partition: the operator alone decides.
        "tolerations": [
            {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute"}
            for trouble in ("not-ready", "unreachable")
        ],
        "affinity": {"podAntiAffinity": _not_beside_its_predecessor(made, owner)},
        "containers": [_worker(made, owner, spec)],
        "volumes": _volumes(made, spec, token_secret),
    }


def _not_beside_its_predecessor(made: CreatePod, owner: Owner) -> Object:
    """Keep a stage away from a dead node, which is the emptiest of all until Kubernetes itself knows and taints it.

    The pod that was lost stands there as long as nobody has heard that it ended; a node that returns is free again.
    """
    stage = {Label.DEPLOYMENT.value: owner.name, Label.GROUP_INDEX.value: str(made.group)}
    stage[Label.STAGE.value] = str(made.stage)
    term = {"labelSelector": {"matchLabels": stage}, "topologyKey": HOSTNAME}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _custom(made: CreatePod, owner: Owner, spec: Spec) -> Object:
    """Somebody else's engine: image, command and probes are the template's, ours is only what it must be told."""
    arguments = [f"--{name}={value}" for name, value in spec.engine.args.items()]
    return {
        "name": WORKER_CONTAINER,
        "env": _environment(made, owner),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(spec),
        **({"args": arguments} if arguments else {}),
    }


def _worker(made: CreatePod, owner: Owner, spec: Spec) -> Object:
    if spec.engine.type is EngineType.CUSTOM:
        return _custom(made, owner, spec)
    return {
        "name": WORKER_CONTAINER,
        "image": made.image,
        "command": ["bireme-worker"],
        "env": _environment(made, owner),
        "ports": _ports(made, spec),
        "livenessProbe": _probe("/livez", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=1, failures=1),
        # The worker's last line on stderr says why it ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": _mounts(spec),
    }


def _environment(made: CreatePod, owner: Owner) -> list[Object]:
    leader = f"{host_name(owner, made.group, 0)}.{service_name(owner)}.{owner.namespace}.svc"
    values: dict[str, str] = {
        **made.environment,
        Env.LEADER_ADDRESS: leader,
        Env.TOKEN_FILE: f"{TOKEN_DIR}/{TOKEN_FILE}",
        Env.STATE_DIR: STATE_DIR,
    }
    if Env.SHARD_CACHE in values:  # a path of the node
        values[Env.SHARD_CACHE] = SHARDS_MOUNT
    address = {"name": Env.POD_IP.value, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [address, *({"name": str(name), "value": value} for name, value in sorted(values.items()))]


def _ports(made: CreatePod, spec: Spec) -> list[Object]:
    ports: dict[str, int] = {"admin": Port.ADMIN}
    if made.stage == 0:
        ports |= {"http": Port.HTTP, "control": Port.CONTROL, "plan": Port.PLAN}
    ports |= {f"data-{rank}": Port.DATA + rank for rank in range(spec.parallelism.tensor)}
    return [{"name": name, "containerPort": int(port), "protocol": "TCP"} for name, port in ports.items()]


def _probe(path: str, *, period: int, failures: int) -> Object:
    get = {"path": path, "port": int(Port.ADMIN), "scheme": "HTTP"}
    return {"httpGet": get, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 2}


def _volumes(made: CreatePod, spec: Spec, token_secret: str) -> list[Object]:
    token = {"secretName": token_secret, "items": [{"key": str(made.group), "path": TOKEN_FILE}], "defaultMode": 0o440}
    volumes: list[Object] = [
        {"name": "state", "emptyDir": {}},
        {"name": "token", "secret": token},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    return volumes + _model(spec.model.source) + _shards(spec)


def _model(source: ModelSource) -> list[Object]:
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        return [{"name": "model", "persistentVolumeClaim": claim}]
    if source.image is not None:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy.value}
        return [{"name": "model", "image": image}]
    return []


def _shards(spec: Spec) -> list[Object]:
    cache = spec.engine.shard_cache
    if cache is None:
        return []
    if cache.claim_name is not None:
        return [{"name": "shards", "persistentVolumeClaim": {"claimName": cache.claim_name}}]
    return [{"name": "shards", "hostPath": {"path": cache.node_path, "type": "DirectoryOrCreate"}}]


def _mounts(spec: Spec) -> list[Object]:
    mounts: list[Object] = [
        {"name": "state", "mountPath": STATE_DIR},
        {"name": "token", "mountPath": TOKEN_DIR, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # a mount of the pod's own over a read-only root
    ]
    if _model(spec.model.source):
        mounts.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    if spec.engine.shard_cache is not None:
        mounts.append({"name": "shards", "mountPath": SHARDS_MOUNT})
    return mounts
