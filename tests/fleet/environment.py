"""The command and environment of a container, as a kubelet makes them from the pod and the cluster."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fleet.api import Object
from tests.fleet.sources import Sources, Unsatisfied

PULL_BACK_OFF: Final = "ImagePullBackOff"


class NoImage(Exception):
    """The image is none of the fleet's."""


@dataclass(frozen=True)
class Launch:
    """What is executed."""

    command: Sequence[str]
    environment: Mapping[str, str]


async def environment(container: Object, sources: Sources) -> dict[str, str]:
    """Return the container's own variables, in the order of the pod, later ones winning.

    Raises:
        Unsatisfied: a secret, config map or key is missing, or a field is unknown.
    """
    found: dict[str, str] = {}
    for each in container.get("envFrom", []):
        found |= await _all_of(each, sources)
    for each in container.get("env", []):
        value = await _value(each, sources, found)
        if value is not None:
            found[each["name"]] = value
    return found


async def _all_of(source: Object, sources: Sources) -> dict[str, str]:
    if "secretRef" in source:
        of = source["secretRef"]
        files = await sources.secret(of["name"], of.get("optional", False))
    else:
        of = source["configMapRef"]
        files = await sources.config_map(of["name"], of.get("optional", False))
    return {source.get("prefix", "") + key: value.decode() for key, value in files.items()}


async def _value(each: Object, sources: Sources, earlier: Mapping[str, str]) -> str | None:
    match each.get("valueFrom"):
        case None:
            return expand(each.get("value", ""), earlier)
        case {"fieldRef": of}:
            return sources.field(of["fieldPath"])
        case {"secretKeyRef": of}:
            return _key(await sources.secret(of["name"], of.get("optional", False)), of)
        case {"configMapKeyRef": of}:
            return _key(await sources.config_map(of["name"], of.get("optional", False)), of)
        case other:
            raise Unsatisfied(f"{each['name']}: {', '.join(other)} is nothing that the simulated kubelet gives")


def _key(files: Mapping[str, bytes], of: Object) -> str | None:
    if of["key"] in files:
        return files[of["key"]].decode()
    if of.get("optional", False):
        return None
    raise Unsatisfied(f"{of['name']} has no key {of['key']}")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable, leave unknown names, and turn `$$` into `$`."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([-.\w]+)\)", one, text)


def own_words(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Return the words of the pod itself, `command` and `args`."""
    return [expand(word, variables) for word in (*container.get("command", []), *container.get("args", []))]


def command_line(container: Object, images: Mapping[str, Sequence[str]], words: Sequence[str]) -> list[str]:
    """Return what runs: ``words``, after the image's entry point unless they have a command.

    Raises:
        NoImage: the fleet has no such image.
    """
    image = container["image"]
    if image not in images:
        raise NoImage(f"no image {image} on this node; there are {', '.join(sorted(images)) or 'none'}")
    return [*words] if container.get("command") else [*images[image], *words]


def executable(command: Sequence[str]) -> list[str]:
    """Return ``command`` with the program's full path; `python` and our own scripts are this environment's.

    Raises:
        Unsatisfied: there is no such program.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which(command[0], path=path)
    if found is None:
        raise Unsatisfied(f"no program {command[0]} on this machine")
    return [found, *command[1:]]
