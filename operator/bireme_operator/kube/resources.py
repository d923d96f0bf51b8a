"""Where each kind that we touch lives in the API: one line a kind, so that no discovery is needed at run time.

Discovery would be two requests per API group at every start, and its cache is a file that outlives upgrades.
"""

from dataclasses import dataclass
from typing import Any, Final

from bireme.names import GROUP, KIND, VERSION


@dataclass(frozen=True)
class Resource:
    """One kind. ``api_version`` as in manifests."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of one object or, without a name, of the collection."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        scope = [f"namespaces/{namespace}"] if self.namespaced and namespace else []
        return "/".join([root, *scope, self.plural, *filter(None, (name, subresource))])


DEPLOYMENTS: Final = Resource(f"{GROUP}/{VERSION}", KIND, "inferencedeployments")
PODS: Final = Resource("v1", "Pod", "pods")
SECRETS: Final = Resource("v1", "Secret", "secrets")
SERVICES: Final = Resource("v1", "Service", "services")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
APPS: Final = Resource("apps/v1", "Deployment", "deployments")
REVISIONS: Final = Resource("apps/v1", "ControllerRevision", "controllerrevisions")
POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
POD_GROUPS: Final = Resource("scheduling.k8s.io/v1beta1", "PodGroup", "podgroups")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")

_KNOWN: Final = (
    DEPLOYMENTS,
    PODS,
    SECRETS,
    SERVICES,
    CONFIG_MAPS,
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    APPS,
    REVISIONS,
    POLICIES,
    NODES,
    POD_GROUPS,
    LEASES,
    BUDGETS,
    EVENTS,
)
_BY_KIND: Final = {(resource.api_version, resource.kind): resource for resource in _KNOWN}


def resource_of(manifest: dict[str, Any]) -> Resource:
    """Return the resource of a rendered object."""
    return _BY_KIND[manifest["apiVersion"], manifest["kind"]]


def resource_in(path: str) -> str:
    """Return what RBAC calls the resource at a path that `Resource.path` made, such as `pods` or `pods/status`."""
    words = path.split("/")[3 if path.startswith("/api/") else 4 :]
    if words[0] == "namespaces" and len(words) > 2:
        words = words[2:]
    return "/".join([words[0], *words[2:]])
