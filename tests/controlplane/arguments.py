"""The command line of each part of the control plane: only what a test ground needs beyond Kubernetes' defaults.

Where a default is changed the reason stands beside it; everything else behaves as in any cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.controlplane.programs import Program

_LOOPBACK: Final = "127.0.0.1"
_GANG_GATE: Final = "--feature-gates=GenericWorkload=true"
_SERVICE_RANGE: Final = "10.0.0.0/16"  # nothing routes there; service addresses are only written down
_AUDIT_POLICY: Final = '{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}'


@dataclass(frozen=True)
class Settings:
    """What differs between test grounds."""

    audit: bool = False
    """Write one line per request to `audit.log`."""
    node_monitor_grace_seconds: int = 8
    """How long a node's Lease may stand still before the node is tainted. Kubernetes waits 50 s; tests can't."""
    client_rate: int = 0
    """Requests a second that scheduler and controller manager allow themselves; 0: Kubernetes' own 50 and 20."""
    endpoints_gathered_seconds: int = 0
    """How long changes of a Service's endpoints are gathered into one write; Kubernetes itself doesn't wait."""
    gangs: bool = True
    """Whether the scheduler keeps gangs; where it does not, the API server still takes PodGroups."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What each program finds in its environment beside what is there anyway, such as the settings of Go's runtime."""


@dataclass(frozen=True)
class Ports:
    """A TCP port for each listener."""

    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int
    scheduler: int

    @property
    def api_url(self) -> str:
        return f"https://{_LOOPBACK}:{self.api_server}"

    def health_url(self, program: Program) -> str:
        """Where the program says whether it works."""
        match program:
            case Program.ETCD:
                return f"http://{_LOOPBACK}:{self.etcd}/readyz"
            case Program.API_SERVER:
                return f"{self.api_url}/readyz"
            case Program.CONTROLLER_MANAGER:
                return f"https://{_LOOPBACK}:{self.controller_manager}/healthz"
            case Program.SCHEDULER:
                return f"https://{_LOOPBACK}:{self.scheduler}/healthz"
            case _:
                raise ValueError(f"{program} is no part of a control plane")


@dataclass(frozen=True)
class Files:
    """Where the control plane of one directory keeps its things."""

    root: Path

    @property
    def tokens(self) -> Path:
        return self.root / "tokens.csv"

    @property
    def signing_key(self) -> Path:
        return self.root / "service-account.key"

    @property
    def certificates(self) -> Path:
        """Where each server keeps the certificate that it makes for itself."""
        return self.root / "certificates"

    @property
    def authority(self) -> Path:
        """The issuer of the API server's certificate."""
        return self.root / "ca.crt"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    @property
    def audit_policy(self) -> Path:
        return self.root / "audit-policy.json"

    def log(self, program: Program) -> Path:
        return self.root / f"{program}.log"

    def kubeconfig(self, user: str) -> Path:
        return self.root / f"{user.replace(':', '-')}.kubeconfig"


def arguments(program: Program, files: Files, ports: Ports, settings: Settings) -> list[str]:
    """Return the arguments that start ``program``."""
    match program:
        case Program.ETCD:
            return _etcd(files, ports)
        case Program.API_SERVER:
            return _api_server(files, ports) + (_audit(files) if settings.audit else [])
        case Program.CONTROLLER_MANAGER:
            return [*_controller_manager(files, ports, settings), *_gathered(settings), *_rate(settings), _GANG_GATE]
        case Program.SCHEDULER:
            return _scheduler(files, ports) + _rate(settings) + ([_GANG_GATE] if settings.gangs else [])
        case _:
            raise ValueError(f"{program} is no part of a control plane")


def _etcd(files: Files, ports: Ports) -> list[str]:
    client, peer = (f"http://{_LOOPBACK}:{port}" for port in (ports.etcd, ports.etcd_peer))
    return [
        "--name=test",
        f"--data-dir={files.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=test={peer}",
        "--unsafe-no-fsync",  # nothing of it outlives the session
        "--log-level=warn",
    ]


def _api_server(files: Files, ports: Ports) -> list[str]:
    return [
        f"--etcd-servers=http://{_LOOPBACK}:{ports.etcd}",
        f"--secure-port={ports.api_server}",
        f"--bind-address={_LOOPBACK}",
        # The address that the Service `kubernetes` would lead to; a loopback address may not stand there.
        f"--advertise-address={_LOOPBACK}",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={files.certificates}",
        f"--token-auth-file={files.tokens}",
        f"--service-account-issuer={ports.api_url}",
        f"--service-account-key-file={files.signing_key}",
        f"--service-account-signing-key-file={files.signing_key}",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        "--allow-privileged",  # as every installer sets it; Pod Security judges it instead
        "--authorization-mode=Node,RBAC",
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
        _GANG_GATE,
    ]


def _audit(files: Files) -> list[str]:
    files.audit_policy.write_text(_AUDIT_POLICY, encoding="utf-8")
    return [f"--audit-log-path={files.audit_log}", f"--audit-policy-file={files.audit_policy}"]


def _controller_manager(files: Files, ports: Ports, settings: Settings) -> list[str]:
    return [
        *_client(files, ports.controller_manager, "system:kube-controller-manager"),
        "--use-service-account-credentials",  # each controller has its own role, as in any cluster
        f"--service-account-private-key-file={files.signing_key}",
        f"--root-ca-file={files.authority}",
        f"--node-monitor-grace-period={settings.node_monitor_grace_seconds}s",
        "--node-monitor-period=1s",
    ]


def _gathered(settings: Settings) -> list[str]:
    period = settings.endpoints_gathered_seconds
    kinds = ("endpoint", "endpointslice") if period else ()
    return [f"--{kind}-updates-batch-period={period}s" for kind in kinds]


def _scheduler(files: Files, ports: Ports) -> list[str]:
    return _client(files, ports.scheduler, "system:kube-scheduler")


def _rate(settings: Settings) -> list[str]:
    rate = settings.client_rate
    return [f"--kube-api-qps={rate}", f"--kube-api-burst={rate}"] if rate else []


def _client(files: Files, port: int, user: str) -> list[str]:
    kubeconfig = files.kubeconfig(user)
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={_LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={files.certificates}",
        "--leader-elect=false",  # there is one; a Lease would only delay it
    ]
