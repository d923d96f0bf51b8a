"""What a run has wanted so far: the specs, numbered from 1 as ControllerRevisions are, so that one can be had again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.api import InferenceDeployment, parse
from bireme.names import Annotation
from bireme_operator.local.wish import Wish
from bireme_operator.plan.rendering import Rendering


@dataclass
class Past:
    """The newest deployment of each rendering, by key, oldest first. One that is wanted again is the newest again."""

    _known: dict[str, tuple[int, InferenceDeployment]] = field(default_factory=dict)

    def note(self, deployment: InferenceDeployment) -> None:
        """Remember what is wanted now."""
        key, highest = _key(deployment), max((number for number, _ in self._known.values()), default=0)
        number, _ = self._known.pop(key, (0, deployment))
        self._known[key] = (highest if highest and number == highest else highest + 1, deployment)

    def get(self, number: int) -> InferenceDeployment | None:
        """Return the one of that number."""
        return dict(self._known.values()).get(number)

    def describe(self, present: InferenceDeployment) -> list[dict[str, Any]]:
        """Return all of them for status.json."""
        wanted = _key(present)
        return [
            {
                "number": number,
                "revision": key,
                "modelRevision": one.spec.model.revision,
                "source": one.to_dict()["spec"]["model"]["source"],
                "wanted": key == wanted,
            }
            for key, (number, one) in self._known.items()
        ]


def with_checkpoint(content: Mapping[str, Any], wish: Wish) -> InferenceDeployment:
    """Return the deployment with the checkpoint that is wished for.

    Raises:
        InvalidDeployment: path or revision can't be written in a deployment.
    """
    model = content["spec"]["model"] | {"source": {"path": wish.path}, "revision": wish.revision}
    return _written(content, content["spec"] | {"model": model})


def with_restart(deployment: InferenceDeployment, value: str) -> InferenceDeployment:
    """Return the deployment with another value of the restart annotation."""
    content = deployment.to_dict()
    annotations = {**content["metadata"].get("annotations", {}), Annotation.RESTART.value: value}
    return _written(content | {"metadata": content["metadata"] | {"annotations": annotations}}, content["spec"])


def with_pause(deployment: InferenceDeployment) -> InferenceDeployment:
    """Return the deployment with everything left as it is."""
    content = deployment.to_dict()
    return _written(content, content["spec"] | {"paused": True})


def with_resume(deployment: InferenceDeployment, value: str) -> InferenceDeployment:
    """Return the deployment with another value of the resume annotation, and not paused."""
    content = deployment.to_dict()
    annotations = {**content["metadata"].get("annotations", {}), Annotation.RESUME.value: value}
    metadata = content["metadata"] | {"annotations": annotations}
    return _written(content | {"metadata": metadata}, content["spec"] | {"paused": False})


def with_spec(deployment: InferenceDeployment, other: InferenceDeployment) -> InferenceDeployment:
    """Return the deployment with what ``other`` wanted; its annotations are no part of that."""
    return _written(deployment.to_dict(), other.to_dict()["spec"])


def _written(content: Mapping[str, Any], spec: Mapping[str, Any]) -> InferenceDeployment:
    kind = {key: content[key] for key in ("apiVersion", "kind") if key in content}
    names = {key: value for key, value in content["metadata"].items() if key not in {"uid", "generation"}}
    return parse(kind | {"metadata": names, "spec": spec})


def _key(deployment: InferenceDeployment) -> str:
    return Rendering.of(deployment.spec, deployment.model_name).key
