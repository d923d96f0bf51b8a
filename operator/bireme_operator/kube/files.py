"""Where kubectl's own configuration lies; asked before the Kubernetes client is loaded, which takes half a second."""

import os
from pathlib import Path
from typing import Final

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def kubeconfigs(named: str = "") -> list[Path]:
    """Return the kubeconfig files that are there: ``named``, else those of KUBECONFIG, else ~/.kube/config."""
    default = Path.home() / ".kube" / "config"
    paths = (named or os.environ.get("KUBECONFIG") or str(default)).split(os.pathsep)
    return [path for path in (Path(one).expanduser() for one in paths if one) if path.is_file()]


def is_configured() -> bool:
    """Whether any cluster is known on this machine."""
    return bool(kubeconfigs()) or (SERVICE_ACCOUNT / "token").exists()
