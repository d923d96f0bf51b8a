"""A pod's volumes as directories of this machine, and where a container's mount paths lie in them.

No process is moved into a mount namespace, which would need rights over the machine: a mount path that stands in a
command, argument or variable is replaced by the directory behind it, and nothing is found under the path itself.
"""

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.fleet.api import Object
from tests.fleet.runtime import Sandbox
from tests.fleet.sources import Sources, Unsatisfied

Files = Mapping[str, bytes]

_STORED: Final = {"emptyDir", "hostPath", "image", "persistentVolumeClaim"}
_EVERY_ADDRESS: Final = "0.0.0.0"
_CHECKOUT: Final = Path(__file__).parents[2]


async def mount(pod: Object, sandbox: Sandbox, sources: Sources) -> None:
    """Make the pod's volumes; what is there from an earlier start of the kubelet stays as it is.

    Raises:
        Unsatisfied: a volume can't be had now.
    """
    for volume in pod["spec"].get("volumes", []):
        if volume["name"] not in sandbox.volumes:
            sandbox.volumes[volume["name"]] = _directory(volume, sandbox)
    await refresh(pod, sandbox, sources)


async def refresh(pod: Object, sandbox: Sandbox, sources: Sources) -> None:
    """Write what the cluster has into the volumes again, file by file and each by one rename.

    Mount paths in config maps are replaced too: a program may find the path of another volume there.

    Raises:
        Unsatisfied: something is not there.
    """
    mounts = [each for container in pod["spec"]["containers"] for each in container.get("volumeMounts", [])]
    paths = Paths({"name": "", "volumeMounts": mounts}, sandbox)
    for volume in pod["spec"].get("volumes", []):
        parts = (volume.get("projected") or {"sources": [volume]})["sources"]
        if _STORED.isdisjoint(volume):
            files = [file for part in parts for file in (await _files(part, sources, paths)).items()]
            _write(sandbox.volumes[volume["name"]], dict(files))


def _directory(volume: Object, sandbox: Sandbox) -> Path:
    own: Path = sandbox.root / "v" / volume["name"]
    match volume:
        case {"hostPath": {"path": path}}:
            return Path(path)
        case {"persistentVolumeClaim": {"claimName": claim}}:
            own = sandbox.root.parents[1] / "claims" / sandbox.namespace / claim
        case {"image": {"reference": reference}}:
            return _pulled(reference)
        case _:
            shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _pulled(reference: str) -> Path:
    """The content of an image: the registry is this machine, an image's name the path of a directory on it."""
    if not Path(reference).is_dir():
        raise Unsatisfied(f"image {reference} can't be pulled: there is no such directory")
    return Path(reference)


async def _files(source: Object, sources: Sources, paths: "Paths") -> Files:
    match source:
        case {"secret": of}:
            name = of.get("secretName") or of["name"]
            return _chosen(await sources.secret(name, of.get("optional", False)), of)
        case {"configMap": of}:
            found = _chosen(await sources.config_map(of["name"], of.get("optional", False)), of)
            return {name: paths.translate_bytes(content) for name, content in found.items()}
        case {"downwardAPI": of}:
            return {item["path"]: sources.field(item["fieldRef"]["fieldPath"]).encode() for item in of.get("items", [])}
        case {"serviceAccountToken": of}:
            return {of["path"]: (await sources.token(of.get("audience", ""), of["expirationSeconds"])).encode()}
        case _:
            kinds = ", ".join(key for key in source if key != "name")
            raise Unsatisfied(f"volume {source.get('name', '')}: {kinds} is no kind that the simulated kubelet mounts")


def _chosen(files: Files, of: Object) -> Files:
    items = of.get("items")
    if not items:
        return files
    missing = [item["key"] for item in items if item["key"] not in files]
    if missing and not of.get("optional", False):
        raise Unsatisfied(f"no key {missing[0]} in {of}")
    return {item["path"]: files[item["key"]] for item in items if item["key"] in files}


def _write(directory: Path, files: Files) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            partial = path.with_name(f".{path.name}.partial")
            partial.write_bytes(content)
            partial.rename(path)
    for path in directory.iterdir():
        if path.is_file() and path.name not in files:
            path.unlink()


class Paths:
    """Where the paths of one container lie on this machine."""

    def __init__(self, container: Object, sandbox: Sandbox) -> None:
        self.termination = sandbox.root / f"{container['name']}.termination"
        # Our own programs are where they are, even in a checkout below a path that the container mounts.
        self._pairs: dict[str, str | Path] = {str(path): path for path in (_CHECKOUT, sys.prefix)}
        self._pairs |= {_EVERY_ADDRESS: sandbox.ip}
        self._pairs |= {container.get("terminationMessagePath", "/dev/termination-log"): self.termination}
        for each in container.get("volumeMounts", []):
            volume = sandbox.volumes.get(each["name"])
            if volume is not None:
                self._pairs[each["mountPath"].rstrip("/")] = volume / each.get("subPath", "")
        longest_first = sorted(self._pairs, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![-\w./])(?:{'|'.join(map(re.escape, longest_first))})(?![-\w.])")

    def translate(self, text: str) -> str:
        """Replace every mount path in ``text``, and "every address" by the pod's: other pods are on this machine too."""
        return self._pattern.sub(self._behind, text)

    def translate_bytes(self, content: bytes) -> bytes:
        """Replace every mount path in a text; what is none stays as it is."""
        try:
            return self.translate(content.decode()).encode()
        except UnicodeDecodeError:
            return content

    def message(self) -> str:
        """Return what the container left as its termination message."""
        path = self.termination
        return path.read_text(errors="replace")[:4096] if path.is_file() else ""

    def _behind(self, found: re.Match[str]) -> str:
        return str(self._pairs[found[0]])
