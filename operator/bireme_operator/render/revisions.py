"""A rendering as a ControllerRevision: the part of the spec that pods depend on, with every default written out.

Defaults are written out because a later operator may have others, and a group must be made again as it was.
"""

from collections.abc import Mapping
from typing import Any, Final

from bireme.api import InferenceDeployment
from bireme.api.document import parse
from bireme.names import GROUP, KIND, VERSION, Label
from bireme_operator.plan.rendering import Rendering
from bireme_operator.render.owned import Object, Owner, metadata

ROLE: Final = "revision"
_KEPT: Final = ("model", "parallelism", "engine", "template", "placement", "rollout", "recovery")


def render_revision(owner: Owner, deployment: InferenceDeployment, number: int) -> Object:
    """Return the ControllerRevision of the deployment as it is now; ``number`` orders them."""
    made = Rendering.of(deployment.spec, deployment.model_name)
    content = deployment.to_dict()["spec"]
    labels = {Label.REVISION.value: made.revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata(owner, f"{owner.name}-{made.key}", ROLE, labels),
        "revision": number,
        "data": _ordered({"spec": {key: content[key] for key in _KEPT if key in content}}),
    }


def _ordered(value: Any) -> Any:
    """Return the same with all keys in order, as the API server writes them.

    It takes no other change of a revision whose data it would write anew, so that none could lose its owner reference:
    `kubectl delete --cascade=orphan` would never end.
    """
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def read_revision(owner: Owner, body: Mapping[str, Any]) -> InferenceDeployment:
    """Return the deployment that a ControllerRevision was made of, as far as pods depend on it.

    Raises:
        InvalidDeployment: another release of Bireme wrote it and this one can't read it.
    """
    return parse(
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": owner.name, "namespace": owner.namespace},
            "spec": (body.get("data") or {}).get("spec"),
        }
    )
