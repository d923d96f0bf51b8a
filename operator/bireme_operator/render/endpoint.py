"""The endpoint of an engine that is not ours: our router can't speak to it, so ready leaders share the load.

The Service has the name of the router's, so that clients need not know.
"""

from bireme.api.deployment import Spec
from bireme.names import Label, Port
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.router import ROUTER, router_name


def render_custom_endpoint(owner: Owner, spec: Spec) -> Object:
    """Return the Service of the leaders; each listens on port 8000."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, router_name(owner), ROUTER),
        "spec": {
            "selector": {Label.DEPLOYMENT.value: owner.name, Label.STAGE.value: "0"},
            "ports": [{"name": "http", "port": spec.router.port, "targetPort": int(Port.HTTP), "protocol": "TCP"}],
        },
    }
