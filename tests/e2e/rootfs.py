"""A Debian root file system for nodes, made once and kept in the cache, and slices of it for the images of pods."""

import hashlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.e2e.commands import run
from tests.e2e.docker import need_packages
from tests.e2e.progress import step

_RELEASE: Final = "bookworm"
_PACKAGES: Final = (
    "systemd", "dbus", "kmod", "mount", "util-linux", "procps", "netbase", "ca-certificates", "curl", "jq",
    "runc", "iptables", "iproute2", "conntrack", "ethtool", "socat",
)  # fmt: skip
_FOLDERS: Final = ("bin", "sbin", "lib", "lib64")
_ACCOUNTS: Final = ("passwd", "group", "nsswitch.conf", "protocols", "services")

NAME: Final = f"rootfs-{_RELEASE}-{hashlib.sha256(' '.join(_PACKAGES).encode()).hexdigest()[:8]}"


def debian(cache: Path) -> Path:
    """Return the root file system, made now if it is not there."""
    target = cache / NAME
    if target.is_dir():  # it appears by one rename
        return target
    need_packages({"debootstrap": "debootstrap"})
    partial = cache / f".{NAME}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with step("making a Debian for the nodes (debootstrap)"):
        run("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _RELEASE, partial)
    partial.rename(target)
    return target


def programs(rootfs: Path, target: Path, names: Iterable[str]) -> None:
    """Copy programs and shared libraries, each with what it is linked with, to ``target``."""
    for folder in _FOLDERS:
        (target / "usr" / folder).mkdir(parents=True, exist_ok=True)
        (target / folder).symlink_to(f"usr/{folder}")
    for folder in ("etc", "run", "var", "tmp"):
        (target / folder).mkdir()
    (target / "tmp").chmod(0o1777)
    for name in _ACCOUNTS:
        shutil.copy(rootfs / "etc" / name, target / "etc" / name)
    for name in sorted(_with_libraries(rootfs, list(names))):
        copy = target / name.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(rootfs / name.lstrip("/"), copy)


def _with_libraries(rootfs: Path, names: list[str]) -> set[str]:
    # ldd ends with 1 when one of its files is a plain static program; its list is complete all the same.
    said = run("chroot", rootfs, "/bin/sh", "-c", 'ldd "$@" 2>/dev/null || true', "ldd", *names)
    return {*names, *re.findall(r"(/[^\s:]+\.so[^\s:]*)", said)}
