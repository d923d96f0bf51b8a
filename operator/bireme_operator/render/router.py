"""The router of a deployment: Deployment, Service, its own ServiceAccount, and the routes that it reads.

It learns its groups from the ConfigMap of routes and holds all group tokens. The kubelet looks at a mounted ConfigMap
again when the pod changes, so the operator marks the router's pods with the hash of the routes.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from bireme.api.deployment import Spec
from bireme.names import Label
from bireme.wire.routes import Routes, write_routes
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.security import CONTAINER_SECURITY, POD_SECURITY

ROUTER: Final = "router"
TOKENS_DIR: Final = "/bireme/tokens"
ROUTES_DIR: Final = "/bireme/routes"
ROUTES_FILE: Final = "routes.json"
ROUTES_MARK: Final = "bireme.dev/routes"
_AFTER_STREAMS_S: Final = 30


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
            "ports": [{"name": "http", "port": spec.router.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }
    return [account, service, _deployment(owner, spec, image, token_secret)]


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
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": spec.rollout.drain_timeout_seconds + _AFTER_STREAMS_S,
                    "securityContext": POD_SECURITY,
                    "containers": [_container(spec, image)],
                    "volumes": _volumes(owner, token_secret),
                },
            },
        },
    }


def _container(spec: Spec, image: str) -> Object:
    port = spec.router.port
    probe = {"path": "/livez", "port": port, "scheme": "HTTP"}
    return {
        "name": ROUTER,
        "image": image,
        "command": ["bireme-router"],
        "args": [*_flags(spec)],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 2},
        "readinessProbe": {"httpGet": probe, "periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 2},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "routes", "mountPath": ROUTES_DIR, "readOnly": True},
            {"name": "tokens", "mountPath": TOKENS_DIR, "readOnly": True},
        ],
    }


def _flags(spec: Spec) -> Sequence[str]:
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
    }
    return [f"--{name}={value}" for name, value in options.items()]


def _volumes(owner: Owner, token_secret: str) -> list[Object]:
    return [
        {"name": "routes", "configMap": {"name": routes_name(owner), "defaultMode": 0o444}},
        {"name": "tokens", "secret": {"secretName": token_secret, "defaultMode": 0o440}},
    ]
