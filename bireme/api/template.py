"""The pod template: open, so that every field of Kubernetes' pods works without a release of ours.

Only its two halves are known here; what is inside is judged by the API server when a pod is rendered from it.
"""

from typing import Any

from pydantic import Field

from bireme.api.base import ApiModel


class PodTemplate(ApiModel):
    """An open pod template, merged over what Bireme renders."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    """Labels and annotations that are added to the pods. Default none."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Any fields of a pod's spec: image, resources, nodeSelector, tolerations, volumes. The container named `worker` is
    the one that Bireme runs. Default none."""
