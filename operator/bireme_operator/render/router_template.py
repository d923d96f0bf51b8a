"""Merges `spec.router.template` over the router's pods, except for what finds them and what they are told with."""

from collections.abc import Mapping
from typing import Any, Final

from bireme.api.template import PodTemplate
from bireme_operator.render.errors import InvalidTemplate
from bireme_operator.render.merge import entries, keys, merge
from bireme_operator.render.owned import Object

_OURS: Final = ("restartPolicy", "serviceAccountName", "terminationGracePeriodSeconds")
_LABEL_PREFIX: Final = "bireme.dev/"


def with_router_template(deployment: Object, template: PodTemplate | None, container: str) -> Object:
    """Return the router's Deployment with the template merged over its pods.

    Raises:
        InvalidTemplate: the template sets what Bireme decides.
    """
    if template is None:
        return deployment
    _refuse_what_is_ours(template, container)
    pods = merge(deployment["spec"]["template"], {"metadata": template.metadata, "spec": template.spec})
    return {**deployment, "spec": {**deployment["spec"], "template": pods}}


def _refuse_what_is_ours(template: PodTemplate, container: str) -> None:
    ours = [f"spec.router.template.spec.{key}" for key in _OURS if key in template.spec]
    ours += [
        f"spec.router.template.metadata.{key}" for key in template.metadata if key not in {"labels", "annotations"}
    ]
    labels = [key for key in keys(template.metadata.get("labels")) if key.startswith(_LABEL_PREFIX)]
    ours += [f"spec.router.template.metadata.labels[{key}]" for key in labels]
    for one in entries(template.spec.get("containers")):
        ours += [f"{key} of container {container}" for key in ("args", "command") if _is_set(one, container, key)]
    if ours:
        raise InvalidTemplate(f"remove {', '.join(ours)} from spec.router.template: Bireme decides it itself")


def _is_set(entry: Mapping[str, Any], container: str, key: str) -> bool:
    return entry.get("name") == container and key in entry
