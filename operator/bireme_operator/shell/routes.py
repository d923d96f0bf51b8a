"""Where the router finds the leader of a group."""

from bireme.names import Port
from bireme.wire.routes import Route
from bireme_operator.plan.desired import Desired
from bireme_operator.render.router import TOKENS_DIR
from bireme_operator.shell.records import PodRecord


def route_of(record: PodRecord, desired: Desired) -> Route:
    """Return the route to a leader pod."""
    view = record.view
    host = f"[{view.address}]" if ":" in view.address else view.address
    return Route(
        group=desired.group_uid(view.group),
        index=view.group,
        pod=view.name,
        incarnation=view.incarnation,
        http=f"http://{host}:{int(Port.HTTP)}",
        admin=f"http://{host}:{int(Port.ADMIN)}",
        token_file=f"{TOKENS_DIR}/{view.group}",
    )
