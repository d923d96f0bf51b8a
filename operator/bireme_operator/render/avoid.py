"""Keeps a new pod off nodes by name: the scheduler would send it there, only to have it asked to leave again.

A pod that bears every taint may be sent to a cordoned node, and nothing keeps any pod off one whose device is broken.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from bireme_operator.render.owned import Object

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME: Final = "metadata.name"


def avoiding(pod: Object, nodes: Collection[str]) -> Object:
    """Return the manifest of a pod that no scheduler sends to these nodes."""
    if not nodes:
        return pod
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    wishes = affinity.get("nodeAffinity") or {}
    # One name each: the API takes no more in a match of a field.
    off = [{"key": _NAME, "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    terms = (wishes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    kept = [{**term, "matchFields": [*(term.get("matchFields") or ()), *off]} for term in terms]
    wishes = {**wishes, _REQUIRED: {"nodeSelectorTerms": kept}}
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": wishes}}}


def avoided_by(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return the nodes that a pod was kept off by name."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    fields = [one for term in terms for one in term.get("matchFields") or ()]
    named = [one["values"] for one in fields if one["key"] == _NAME and one["operator"] == "NotIn"]
    return frozenset(name for values in named for name in values)
