"""The programs of a control plane and where each comes from: a Go module beside this file pins every version.

The pins stand in `modules/*/go.mod` alone. The key of a module is a hash of all that decides its binaries, so a changed
pin or flag builds into a new folder of the cache and an unchanged one is never built twice.
"""

import hashlib
import platform
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_MODULES: Final = Path(__file__).parent / "modules"


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
        if self.name != "kubernetes":
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
        parts.append(f"{self.linker_flags} {platform.system()} {platform.machine()}".encode())
        return f"{self.name}-{self.version}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:12]}"

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, (self.folder / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
        assert found, f"{self.folder}/go.mod has no line like {pattern}"
        return found.group(1)


KUBERNETES: Final = Module("kubernetes", "k8s.io/kubernetes")
_ETCD_SERVER: Final = Module("etcd", "go.etcd.io/etcd/server/v3")
_KWOK: Final = Module("kwok", "sigs.k8s.io/kwok")


class Program(StrEnum):
    """One program of the control plane, by the name of its file."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBECTL = "kubectl"
    KWOK = "kwok"

    @property
    def module(self) -> Module:
        return {Program.ETCD: _ETCD_SERVER, Program.KWOK: _KWOK}.get(self, KUBERNETES)

    @property
    def package(self) -> str:
        """The Go package of its main function."""
        return self.module.release if self is Program.ETCD else f"{self.module.release}/cmd/{self}"
