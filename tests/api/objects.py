"""Deployments for tests: the smallest right one, and a way to change one field of it."""

import copy
from typing import Any


def minimal(name: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "bireme.dev/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"source": {"path": "/models/llama"}, "revision": "1"}},
    }


def with_fields(**changes: Any) -> dict[str, Any]:
    """Return the smallest deployment with ``spec__parallelism__tensor=2`` set as ``spec.parallelism.tensor``."""
    document = minimal()
    for path, value in changes.items():
        put(document, tuple(path.split("__")), value)
    return document


def put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set one field, with its parents."""
    for part in path[:-1]:
        parent = document.setdefault(part, {})
        document = parent if isinstance(parent, dict) else {}
    document[path[-1]] = copy.deepcopy(value)
