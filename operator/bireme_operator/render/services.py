"""The headless Service in which every stage has a host name, ready or not: peers must find one another before."""

from bireme.api.local import WORKER_CONTAINER
from bireme.names import Label, Port
from bireme_operator.render.owned import Object, Owner, metadata
from bireme_operator.render.pods import COMPONENT, service_name


def render_stages_service(owner: Owner) -> Object:
    """Return the headless Service of all stage pods."""
    ports = {"http": Port.HTTP, "admin": Port.ADMIN, "control": Port.CONTROL, "plan": Port.PLAN}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, service_name(owner), "stages"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {Label.DEPLOYMENT.value: owner.name, COMPONENT: WORKER_CONTAINER},
            "ports": [
                {"name": name, "port": int(port), "targetPort": int(port), "protocol": "TCP"}
                for name, port in ports.items()
            ],
        },
    }
