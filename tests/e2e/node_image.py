"""Builds the image of a node for machines that reach no registry: a Debian, our own builds of Kubernetes, no download.

The images of the system's pods lie in its containerd already, under a name that no registry has. Everything that makes
the image is part of its tag, so that it is built once and again when one of its parts changes.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.controlplane.polling import eventually
from tests.controlplane.programs import Program
from tests.e2e import rootfs
from tests.e2e.commands import CommandFailed, run, works
from tests.e2e.docker import image_exists
from tests.e2e.progress import step

_HERE: Final = Path(__file__).parent
_FILES: Final = _HERE / "node"
REPOSITORY: Final = "localhost/kubernetes"
"""Where kubeadm is told that the images of its pods come from."""
_NAME: Final = "bireme-e2e/node"
_OWN: Final = "e2e"
"""Tag of the images whose names are ours: they have no release to name."""

_NODE_PROGRAMS: Final[Mapping[str, Sequence[Program]]] = {
    "usr/bin": (Program.KUBELET, Program.KUBEADM, Program.KUBECTL),
    "usr/local/bin": (Program.CONTAINERD, Program.CONTAINERD_SHIM, Program.CTR, Program.CRICTL),
    "opt/cni/bin": (Program.CNI_PTP, Program.CNI_HOST_LOCAL, Program.CNI_PORTMAP, Program.CNI_LOOPBACK),
}
_POD_PROGRAMS: Final = (
    Program.API_SERVER,
    Program.CONTROLLER_MANAGER,
    Program.SCHEDULER,
    Program.ETCD,
    Program.COREDNS,
    Program.KUBE_PROXY,
)
PROGRAMS: Final = (*(one for several in _NODE_PROGRAMS.values() for one in several), *_POD_PROGRAMS)
"""What must be built before."""

_NETWORK_TOOLS: Final = ("/bin/sh", "/bin/cat", "/bin/mv", "/bin/sleep", "/sbin/ip", "/usr/sbin/conntrack")
_IPTABLES: Final = "/usr/sbin/xtables-nft-multi"
_IPTABLES_NAMES: Final = tuple(
    f"{table}{action}" for table in ("iptables", "ip6tables") for action in ("", "-save", "-restore")
)
_EXTENSIONS: Final = "usr/lib/*/xtables/*.so"
_UNITS: Final = "etc/systemd/system"
_STARTED: Final = ("containerd.service", "kubelet.service")
# Units of a machine that a container is not, or that would need a device or a terminal.
_MASKED: Final = (
    "getty.target", "remote-fs.target", "systemd-logind.service", "systemd-binfmt.service", "systemd-pstore.service",
    "systemd-tmpfiles-setup.service", "systemd-firstboot.service", "systemd-initctl.socket",
    "systemd-journald-audit.socket", "e2scrub_reap.service", "e2scrub_all.timer", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer", "dev-hugepages.mount", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount",
    "proc-sys-fs-binfmt_misc.automount",
)  # fmt: skip
_LEFT_OUT: Final = (
    "./dev/*", "./proc/*", "./sys/*", "./var/cache/*", "./var/lib/apt/lists/*", "./usr/share/doc/*",
    "./usr/share/man/*", "./usr/share/locale/*",
)  # fmt: skip
_IMPORTER: Final = """
version = 3
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"
"""
"""Settings of the containerd that imports: it runs no container and leaves nothing outside of its folder."""
_PAUSE: Final = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) { signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap); while (1) pause(); }
"""


def node_image(built: Mapping[Program, Path], cache: Path) -> str:
    """Return the name of the node image, built now if Docker does not have it."""
    name = f"{_NAME}:{_fingerprint()}"
    if not image_exists(name):
        for old in run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", _NAME).split():
            works("docker", "image", "rm", old)  # a cluster that was kept still uses its own
        debian = rootfs.debian(cache)
        with tempfile.TemporaryDirectory(prefix="node-image-", dir=cache) as directory:
            _build(name, built, debian, Path(directory))
    return name


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{rootfs.NAME} {sorted({one.module.key for one in PROGRAMS})}".encode())
    for path in sorted((*_FILES.rglob("*"), _HERE / "pod-routes", Path(__file__))):
        digest.update(path.read_bytes() if path.is_file() else str(path.relative_to(_HERE)).encode())
    return digest.hexdigest()[:12]


def _build(name: str, built: Mapping[Program, Path], debian: Path, work: Path) -> None:
    images = _Images(built, debian, work)
    with step("images of the system's pods"):
        archive = images.save()
    node = work / "node"
    with step("their place in the node's containerd"):
        _preload(built, archive, node / "var/lib/containerd", work)
    with step("node image"):
        run("cp", "--archive", f"{debian}/.", node)
        _overlay(built, node)
        start = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/usr/lib/systemd/systemd"]'
        _import(node, name, start, "ENV container=docker")


class _Images:
    """The images of the pods that kubeadm and we run in kube-system, each of one layer."""

    def __init__(self, built: Mapping[Program, Path], debian: Path, work: Path) -> None:
        self._built = built
        self._debian = debian
        self._work = work
        self._names: list[str] = []

    def save(self) -> Path:
        """Make all of them and return an archive of them; Docker itself keeps none."""
        version = Program.KUBEADM.module.version
        asked = run(
            self._built[Program.KUBEADM], "config", "images", "list",
            f"--kubernetes-version={version}", f"--image-repository={REPOSITORY}",
        )  # fmt: skip
        for name in asked.split():
            self._of_kubeadm(name)
        self._pause(f"{REPOSITORY}/pause:{_OWN}")
        self._pod_routes(f"{REPOSITORY}/pod-routes:{_OWN}")
        archive = self._work / "images.tar"
        run("docker", "save", "--output", archive, *self._names)
        run("docker", "image", "rm", *self._names)
        return archive

    def _of_kubeadm(self, name: str) -> None:
        word = name.rpartition("/")[2].partition(":")[0]
        if word == "pause":  # containerd is told to take the one of our own name
            return
        program = Program(word)
        root = self._work / word
        (root / "usr/local/bin").mkdir(parents=True)
        if program is Program.KUBE_PROXY:
            self._network_tools(root)
        _place(self._built[program], root / "usr/local/bin" / word)
        self._add(root, name, f'ENTRYPOINT ["/usr/local/bin/{word}"]')

    def _pause(self, name: str) -> None:
        root = self._work / "pause"
        root.mkdir()
        run("gcc", "-static", "-Os", "-s", "-x", "c", "-o", root / "pause", "-", stdin=_PAUSE)
        self._add(root, name, 'ENTRYPOINT ["/pause"]')

    def _pod_routes(self, name: str) -> None:
        root = self._work / "pod-routes"
        (root / "usr/local/bin").mkdir(parents=True)
        self._network_tools(root)
        _place(self._built[Program.KUBECTL], root / "usr/local/bin/kubectl")
        _place(_HERE / "pod-routes", root / "usr/local/bin/pod-routes")
        self._add(root, name)

    def _network_tools(self, root: Path) -> None:
        extensions = [f"/{path.relative_to(self._debian)}" for path in self._debian.glob(_EXTENSIONS)]
        rootfs.programs(self._debian, root, [*_NETWORK_TOOLS, _IPTABLES, *extensions])
        for word in _IPTABLES_NAMES:
            (root / "usr/sbin" / word).symlink_to(Path(_IPTABLES).name)

    def _add(self, root: Path, name: str, *changes: str) -> None:
        _import(root, name, "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin", *changes)
        self._names.append(name)


def _place(source: Path, target: Path) -> None:
    """Copy a program. A hard link would do, but the cache may be another file system."""
    shutil.copy(source, target)
    target.chmod(0o755)


def _import(root: Path, name: str, *changes: str) -> None:
    """Make an image of one layer out of the folder ``root``."""
    pack = ["tar", "--create", "--owner=0", "--group=0", "--numeric-owner"]
    pack += [*(f"--exclude={pattern}" for pattern in _LEFT_OUT), "-C", str(root), "."]
    flags = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
        done = subprocess.run(
            ["docker", "import", *flags, "-", name], stdin=packing.stdout, capture_output=True, text=True, check=False
        )
    if done.returncode or packing.returncode:
        raise CommandFailed(f"docker import of {name} failed: {done.stderr}")


def _preload(built: Mapping[Program, Path], archive: Path, root: Path, work: Path) -> None:
    """Import the archive by a containerd of our own whose folder becomes the node's."""
    root.mkdir(parents=True)
    socket, settings = work / "containerd.sock", work / "containerd.toml"
    settings.write_text(_IMPORTER.format(opt=work / "opt"))
    command = [built[Program.CONTAINERD], "--config", settings, "--address", socket]
    command += ["--root", root, "--state", work / "containerd-state"]
    ctr = (built[Program.CTR], "--address", socket)
    with (work / "containerd.log").open("wb") as log:
        daemon = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
    try:
        eventually(lambda: works(*ctr, "version"), within=30)
        options = ("--local", "--all-platforms", "--discard-unpacked-layers")
        run(*ctr, "--namespace", "k8s.io", "images", "import", *options, archive)
        run(*ctr, "--namespace", "k8s.io", "content", "prune", "references")
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def _overlay(built: Mapping[Program, Path], node: Path) -> None:
    """Lay what makes a node over the Debian."""
    shutil.copytree(_FILES, node, dirs_exist_ok=True)
    (node / "kind/version").write_text(f"{Program.KUBEADM.module.version}\n")
    (node / "etc/kubernetes/manifests").mkdir()
    for folder, several in _NODE_PROGRAMS.items():
        (node / folder).mkdir(parents=True, exist_ok=True)
        for program in several:
            _place(built[program], node / folder / program)
    units = node / _UNITS
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    for unit in _STARTED:
        (units / "multi-user.target.wants" / unit).symlink_to(f"../{unit}")
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
