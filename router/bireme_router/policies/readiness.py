"""When a pod's own standing speaks against a group whose leader says that it serves: the router only subtracts.

A leader's word is seconds newer than its kubelet's, so a group that comes back is not kept waiting for a probe. But a
disagreement that lasts is believed: a readiness gate, a sidecar or the probe itself says no. A pod that is being
deleted gets nothing more at once.
"""

from typing import Final

PATIENCE_S: Final = 3.0


def why_pod_not(*, leaving: bool, unready_for_s: float | None, serving_for_s: float) -> str:
    """Why the pod gets nothing, or empty. ``unready_for_s`` None: it is ready."""
    if leaving:
        return "its pod is being deleted"
    if unready_for_s is not None and min(unready_for_s, serving_for_s) > PATIENCE_S:
        return "its leader says Serving, but its pod is not Ready"
    return ""
