"""What a pod template means to a local process: the environment of the worker, and nothing else.

Image, resources, volumes and the rest have no meaning without a cluster. They are refused, not dropped: a file that
asks for something gets it or an answer.
"""

from typing import Any, Final

from bireme.api.template import PodTemplate
from bireme.names import Env

WORKER_CONTAINER: Final = "worker"
_RESERVED: Final = "BIREME_"
_FREE: Final = (Env.SPARE_RANK, Env.NVTX)
"""What a template may say to a stage although the name is Bireme's."""


def is_reserved(variable: str) -> bool:
    """Whether a template may not set this environment variable of a stage."""
    return variable.startswith(_RESERVED) and variable not in _FREE


def unsupported_template(template: PodTemplate) -> list[str]:
    """Return what the template asks for and a local process can't have, as ``path: instruction``."""
    where = "spec.template"
    refusals = [_no_meaning(f"{where}.metadata.{key}") for key in template.metadata]
    refusals += [_no_meaning(f"{where}.spec.{key}") for key in template.spec if key != "containers"]
    containers = template.spec.get("containers", [])
    if not isinstance(containers, list):
        return [*refusals, f"{where}.spec.containers: write a list"]
    for index, container in enumerate(containers):
        refusals += _unsupported_container(f"{where}.spec.containers[{index}]", container)
    return refusals


def worker_environment(template: PodTemplate) -> dict[str, str]:
    """Return the environment that an accepted template (see `unsupported_template`) adds to every stage."""
    containers = template.spec.get("containers", [])
    return {entry["name"]: entry.get("value", "") for container in containers for entry in container.get("env", [])}


def _unsupported_container(where: str, container: Any) -> list[str]:
    if not isinstance(container, dict) or container.get("name") != WORKER_CONTAINER:
        return [f"{where}: a local stage has one container; write `name: {WORKER_CONTAINER}`, without sidecars"]
    refusals = [_no_meaning(f"{where}.{key}") for key in container if key not in {"name", "env"}]
    environment = container.get("env", [])
    if not isinstance(environment, list):
        return [*refusals, f"{where}.env: write a list of name and value"]
    for index, entry in enumerate(environment):
        refusals += _unsupported_variable(f"{where}.env[{index}]", entry)
    return refusals


def _unsupported_variable(where: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or set(entry) - {"name", "value"}:
        return [f"{where}: write only name and value; valueFrom needs a cluster"]
    if not isinstance(entry.get("value", ""), str):
        return [f"{where}.value: write a string in quotes"]
    if is_reserved(entry["name"]):
        return [f"{where}: remove {entry['name']}; Bireme sets the variables that begin with {_RESERVED} itself"]
    return []


def _no_meaning(path: str) -> str:
    return f"{path}: remove it; it means nothing to a local process, which takes only env of container worker"
