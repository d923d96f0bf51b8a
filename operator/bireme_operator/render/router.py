"""The router of a deployment: Deployment, Service, its own ServiceAccount, and the routes that it reads.

It follows the pods of its deployment (hence a Role), reads models, weights and its first groups from the ConfigMap of
routes, and holds all group tokens. The kubelet looks at a mounted ConfigMap again when the pod changes, so the operator
marks the router's pods with the hash of the routes.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from bireme.api.deployment import Spec
from bireme.api.router import CrossRevision
from bireme.names import Label
from bireme.wire.routes import Routes, write_routes
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.router_template import with_router_template
from bireme_operator.render.security import CONTAINER_SECURITY, POD_SECURITY

ROUTER: Final = "router"
TOKENS_DIR: Final = "/bireme/tokens"
ROUTES_DIR: Final = "/bireme/routes"
ROUTES_FILE: Final = "routes.json"
ROUTES_MARK: Final = "bireme.dev/routes"
ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
API_KEYS_DIR: Final = "/bireme/api-keys"
RATE_LIMITS_DIR: Final = "/bireme/rate-limits"
TLS_DIR: Final = "/bireme/tls"
_RBAC: Final = "rbac.authorization.k8s.io"
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_AFTER_STREAMS_S: Final = 30
_STILL_ASKED_S: Final = 3
"""A pod that ends is still sent new connections until every node knows; the router accepts none once it drains."""


def routes_name(owner: Owner) -> str:
    """Return the name of the ConfigMap with the routes."""
    return f"{owner.name}-routes"


def router_name(owner: Owner) -> str:
    """Return the name of the router's Deployment, ServiceAccount and Service."""
    return f"{owner.name}-router"


def render_routes(owner: Owner, routes: Routes) -> Object:
    """Return the ConfigMap that the router reads."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, routes_name(owner), "routes"),
        "data": {ROUTES_FILE: write_routes(routes).decode()},
    }


def mark_of(routes: Routes) -> str:
    """Return a short hash of the routes."""
    return hashlib.sha256(write_routes(routes)).hexdigest()[:16]


def render_router(owner: Owner, spec: Spec, *, image: str, token_secret: str) -> list[Object]:
    """Return the router's objects, all but the routes."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, router_name(owner), ROUTER),
        "automountServiceAccountToken": False,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, router_name(owner), ROUTER),
        "spec": {
            "selector": _selector(owner),
            # Monitors and meshes go by the name.
            "ports": [
                {
                    "name": "https" if spec.router.tls else "http",
                    "port": spec.router.port,
                    "targetPort": "http",
                    "protocol": "TCP",
                }
            ],
        },
    }
    made = _deployment(owner, spec, image, token_secret)
    return [account, *_rights(owner), service, with_router_template(made, spec.router.template, ROUTER)]


def _rights(owner: Owner) -> list[Object]:
    """It may see pods, and nothing else."""
    name, api = router_name(owner), f"{_RBAC}/v1"
    role = {
        "apiVersion": api,
        "kind": "Role",
        "metadata": metadata(owner, name, ROUTER),
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }
    binding = {
        "apiVersion": api,
        "kind": "RoleBinding",
        "metadata": metadata(owner, name, ROUTER),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    }
    return [role, binding]


def _selector(owner: Owner) -> dict[str, str]:
    return {Label.DEPLOYMENT.value: owner.name, Label.ROLE.value: ROUTER}


def _deployment(owner: Owner, spec: Spec, image: str, token_secret: str) -> Object:
    pod = metadata(owner, "", ROUTER)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(owner, router_name(owner), ROUTER),
        "spec": {
            "replicas": spec.router.replicas,
            "selector": {"matchLabels": _selector(owner)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": pod["labels"]},
                "spec": {
                    "serviceAccountName": router_name(owner),
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds
                    + _AFTER_STREAMS_S
                    + _STILL_ASKED_S,
                    "securityContext": POD_SECURITY,
                    "containers": [_container(owner, spec, image)],
                    "volumes": _volumes(owner, spec, token_secret),
                },
            },
        },
    }


def _container(owner: Owner, spec: Spec, image: str) -> Object:
    port = spec.router.port
    probe = {"path": "/livez", "port": port, "scheme": "HTTPS" if spec.router.tls else "HTTP"}
    zone = {"fieldRef": {"fieldPath": f"metadata.labels['{_ZONE_LABEL}']"}}
    return {
        "name": ROUTER,
        "image": image,
        "command": ["bireme-router"],
        "args": [*_flags(owner, spec)],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "ZONE", "valueFrom": zone},  # empty where nodes have no zone, or Kubernetes is older than 1.35
        ],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 2},
        "readinessProbe": {"httpGet": probe, "periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 2},
        "lifecycle": {"preStop": {"sleep": {"seconds": _STILL_ASKED_S}}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": volume["name"], "mountPath": f"/bireme/{volume['name']}", "readOnly": True}
            for volume in _volumes(owner, spec, "")
        ],
    }


def _flags(owner: Owner, spec: Spec) -> Sequence[str]:
    router = spec.router
    limits = spec.router.limits
    options: dict[str, object] = {
        "routes": f"{ROUTES_DIR}/{ROUTES_FILE}",
        "host": "$(POD_IP)",  # of either family, and never more than the pod's own
        "port": spec.router.port,
        "max-body-bytes": limits.max_body_bytes,
        "max-queued": limits.max_queued_requests,
        "retry-attempts": spec.router.retry.attempts,
        "queue-timeout": limits.queue_timeout_seconds,
        "connect-timeout": limits.connect_timeout_seconds,
        "first-token-timeout": limits.first_token_timeout_seconds,
        "idle-timeout": limits.idle_timeout_seconds,
        "total-timeout": limits.total_timeout_seconds,
        "pods": f"{owner.namespace}/{owner.name}",
        "service-account": ACCOUNT_DIR,
        "tokens": TOKENS_DIR,
        "zone": "$(ZONE)",
    }
    if router.api_keys_secret_ref is not None:
        options["api-keys"] = f"{API_KEYS_DIR}/{router.api_keys_secret_ref.key}"
    if router.rate_limits_secret_ref is not None:
        options["limits"] = f"{RATE_LIMITS_DIR}/{router.rate_limits_secret_ref.key}"
    if router.hedge_after_milliseconds:
        options["hedge-after"] = f"{router.hedge_after_milliseconds / 1000:g}"
    if router.tls is not None:
        options |= {"tls-cert": f"{TLS_DIR}/tls.crt", "tls-key": f"{TLS_DIR}/tls.key"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [*flags, "--cross-revision"] if router.retry.cross_revision is CrossRevision.ALLOW else flags


def _volumes(owner: Owner, spec: Spec, token_secret: str) -> list[Object]:
    secrets = {"tokens": token_secret}
    if spec.router.api_keys_secret_ref is not None:
        secrets["api-keys"] = spec.router.api_keys_secret_ref.name
    if spec.router.rate_limits_secret_ref is not None:
        secrets["rate-limits"] = spec.router.rate_limits_secret_ref.name
    if spec.router.tls is not None:
        secrets["tls"] = spec.router.tls.secret_name
    return [
        {"name": "routes", "configMap": {"name": routes_name(owner), "defaultMode": 0o444}},
        *({"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}} for name, secret in secrets.items()),
    ]
