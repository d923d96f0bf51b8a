"""The programs of a control plane and where each comes from: a Go module beside this file pins every version.

The pins stand in `modules/*/go.mod` alone. The key of a module is a hash of all that decides its binaries, so a changed
pin or flag builds into a new folder of the cache and an unchanged one is never built twice.
"""

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_MODULES: Final = Path(__file__).parent / "modules"


_RELEASE: Final = "k8s.io/kubernetes"


@dataclass(frozen=True)
class Module:
    """A Go module of ours that requires the release to build."""

    name: str
    release: str

    @property
    def folder(self) -> Path:
        return _MODULES / self.name

    @property
    def version(self) -> str:
        """The pinned release, such as ``v1.37.2``."""
        return self._find(rf"^(?:require |\t){re.escape(self.release)} (v\S+)")

    @property
    def go(self) -> str:
        """The oldest Go that builds it, such as ``1.26.0``."""
        return self._find(r"^go (\S+)$")

    @property
    def linker_flags(self) -> str:
        """Leave out debug tables, and say the release that the module proxy's sources don't know of themselves."""
        if self.release != _RELEASE:
            return "-s -w"
        major, minor, _ = self.version.removeprefix("v").split(".")
        names = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        stamps = [f"-X {package}.{name}={value}" for package in packages for name, value in names.items()]
        return " ".join(["-s -w", *stamps])

    @property
    def key(self) -> str:
        """The name of the cache's folder, such as ``kubernetes-v1.37.2-0123456789ab``."""
        parts = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts += [path.read_bytes() for path in sorted(self.folder.glob("*.go"))]
        parts.append(f"{self.linker_flags} {platform.system()} {platform.machine()}".encode())
        return f"{self.name}-{self.version}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:12]}"

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, (self.folder / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
        assert found, f"{self.folder}/go.mod has no line like {pattern}"
        return found.group(1)


KUBERNETES: Final = Module("kubernetes", _RELEASE)
_NODE: Final = Module("node", _RELEASE)
_ETCD_SERVER: Final = Module("etcd", "go.etcd.io/etcd/server/v3")
_KWOK: Final = Module("kwok", "sigs.k8s.io/kwok")
_KIND: Final = Module("kind", "sigs.k8s.io/kind")
_HELM: Final = Module("helm", "helm.sh/helm/v4")
_ACTIONLINT: Final = Module("actionlint", "github.com/rhysd/actionlint")
_CONTAINERD: Final = Module("containerd", "github.com/containerd/containerd/v2")
_CRI_TOOLS: Final = Module("cri-tools", "sigs.k8s.io/cri-tools")
_CNI_PLUGINS: Final = Module("cni-plugins", "github.com/containernetworking/plugins")
_COREDNS: Final = Module("coredns", "github.com/coredns/coredns")


class Program(StrEnum):
    """One program, by the name of its file: those of a control plane, of a node, and the tools of a user."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBECTL = "kubectl"
    KWOK = "kwok"
    KUBELET = "kubelet"
    KUBEADM = "kubeadm"
    KUBE_PROXY = "kube-proxy"
    CONTAINERD = "containerd"
    CONTAINERD_SHIM = "containerd-shim-runc-v2"
    CTR = "ctr"
    CRICTL = "crictl"
    CNI_PTP = "ptp"
    CNI_HOST_LOCAL = "host-local"
    CNI_PORTMAP = "portmap"
    CNI_LOOPBACK = "loopback"
    COREDNS = "coredns"
    KIND = "kind"
    HELM = "helm"
    ACTIONLINT = "actionlint"

    @property
    def module(self) -> Module:
        return _ELSEWHERE[self][0] if self in _ELSEWHERE else KUBERNETES

    @property
    def package(self) -> str:
        """The Go package of its main function."""
        folder = _ELSEWHERE[self][1] if self in _ELSEWHERE else f"/cmd/{self}"
        return folder if folder == _OURS else f"{self.module.release}{folder}"


_OURS: Final = "."
"""The main function is our own, in the module's folder: it takes only parts of the release."""
_ELSEWHERE: Final[Mapping[Program, tuple[Module, str]]] = {
    Program.ETCD: (_ETCD_SERVER, ""),
    Program.KWOK: (_KWOK, "/cmd/kwok"),
    **{one: (_NODE, f"/cmd/{one}") for one in (Program.KUBELET, Program.KUBEADM, Program.KUBE_PROXY)},
    **{one: (_CONTAINERD, f"/cmd/{one}") for one in (Program.CONTAINERD, Program.CONTAINERD_SHIM, Program.CTR)},
    Program.CRICTL: (_CRI_TOOLS, "/cmd/crictl"),
    Program.CNI_PTP: (_CNI_PLUGINS, "/plugins/main/ptp"),
    Program.CNI_LOOPBACK: (_CNI_PLUGINS, "/plugins/main/loopback"),
    Program.CNI_HOST_LOCAL: (_CNI_PLUGINS, "/plugins/ipam/host-local"),
    Program.CNI_PORTMAP: (_CNI_PLUGINS, "/plugins/meta/portmap"),
    Program.COREDNS: (_COREDNS, _OURS),
    Program.KIND: (_KIND, ""),
    Program.HELM: (_HELM, "/cmd/helm"),
    Program.ACTIONLINT: (_ACTIONLINT, "/cmd/actionlint"),
}
"""Programs that are not part of the control plane's own module: their module, and the folder in its release."""

CONTROL_PLANE: Final = (
    Program.ETCD,
    Program.API_SERVER,
    Program.CONTROLLER_MANAGER,
    Program.SCHEDULER,
    Program.KUBECTL,
    Program.KWOK,
)
"""What the control-plane tier runs."""
