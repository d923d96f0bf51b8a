"""Who may reach the stage pods: their own deployment on every port, anybody for probes and metrics, nobody else.

Control, plan and data ports carry no secrets in the clear, but whoever can open a connection can cost time.
"""

from bireme.api.deployment import Spec
from bireme.api.engine import EngineType
from bireme.names import Label, Port
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.pods import service_name


def render_policy(owner: Owner, spec: Spec) -> Object:
    """Return the NetworkPolicy of the stage pods. The operator and kubelets speak to the admin port only."""
    deployment = {Label.DEPLOYMENT.value: owner.name}
    # Without a router of ours, clients speak to the leaders themselves.
    public = [Port.ADMIN, *([Port.HTTP] if spec.engine.type is EngineType.CUSTOM else [])]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(owner, service_name(owner), "stages"),
        "spec": {
            "podSelector": {
                "matchLabels": deployment,
                "matchExpressions": [{"key": Label.STAGE.value, "operator": "Exists"}],
            },
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": deployment}}]},
                {"ports": [{"port": int(port), "protocol": "TCP"} for port in public]},
            ],
        },
    }
