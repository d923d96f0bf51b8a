"""Wait until custom resources can be used: a CRD is served some time after it was applied."""

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.polling import eventually


def await_established(plane: ControlPlane, *crd: str) -> None:
    """Wait until the server has established the CRD that the words ``crd`` name for kubectl."""
    # kubectl gives up at once on an object that has no conditions yet.
    wait = ("wait", "--for=condition=Established", "--timeout=60s", *crd)
    eventually(lambda: plane.kubectl(*wait).returncode == 0)


def await_served(plane: ControlPlane, *crd: str, kind: str = "bireme") -> None:
    """Wait until server and kubectl know its objects too, by the name ``kind``: both hear of it after the condition."""
    await_established(plane, *crd)
    eventually(lambda: plane.kubectl("get", kind, "--all-namespaces").returncode == 0)
