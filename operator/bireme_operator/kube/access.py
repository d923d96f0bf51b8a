"""Which cluster, as whom and in which namespace: found as kubectl finds it, for people at a command line.

The kubeconfig that is named, else those of KUBECONFIG, else ~/.kube/config; where there is none, the service account of
the pod that this runs in. The operator itself does it the other way round, see `client.connected`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from bireme_operator.kube.client import Kube, connection
from bireme_operator.kube.errors import NoCluster
from bireme_operator.kube.files import SERVICE_ACCOUNT, kubeconfigs

_NAMESPACE: Final = "default"


@dataclass(frozen=True)
class Access:
    """How to reach one API server. ``namespace`` is the one that is meant when none is named."""

    settings: Configuration
    namespace: str

    @property
    def server(self) -> str:
        """Its address."""
        return str(self.settings.host)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Kube]:
        """Connect; nothing is asked yet."""
        async with connection(self.settings) as kube:
            yield kube


async def find_access(kubeconfig: str = "", context: str = "") -> Access:
    """Read how to reach the cluster.

    Raises:
        NoCluster: no kubeconfig is there, or it does not name the cluster; the message says what to do.
    """
    files = kubeconfigs(kubeconfig)
    settings = Configuration()
    if not files and not kubeconfig and not context and (SERVICE_ACCOUNT / "token").exists():
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        return Access(settings, (SERVICE_ACCOUNT / "namespace").read_text().strip() or _NAMESPACE)
    if not files:
        looked = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise NoCluster(f"no cluster is configured: {looked} is not there; name a file by --kubeconfig or KUBECONFIG")
    joined = os.pathsep.join(map(str, files))
    try:
        loader: Any = await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=joined, context=context or None, client_configuration=settings, persist_config=False
        )
    except (config.ConfigException, yaml.YAMLError, TypeError, AttributeError, KeyError) as error:
        raise NoCluster(f"{joined} can't be used: {error}; `kubectl config get-contexts` lists what it names") from None
    return Access(settings, str(loader.current_context["context"].get("namespace") or _NAMESPACE))
