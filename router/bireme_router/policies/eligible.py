"""Whether a group may get a request now, and if not, why: the same words go to `/admin/routes`.

The router only subtracts: a group that its own leader does not call ready is never used, a ready one may still be left
out because this router has a reason against it.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """What accounting and failure memory belong to: one making of a leader, in one epoch."""

    pod: str
    epoch: int


@dataclass(frozen=True)
class Standing:
    """One group as the router sees it. ``unknown``, ``suspicion``: why not, or empty. ``capacity`` 0 is unlimited."""

    key: Key
    unknown: str
    state: str
    reason: str
    suspicion: str
    in_flight: int
    capacity: int
    model_revision: str


def why_not_ready(group: Standing) -> str:
    """Why no request at all goes to this group now; empty when one may."""
    if group.unknown:
        return group.unknown
    if group.state != "Serving":
        return f"{group.state}: {group.reason}"
    return group.suspicion


def why_not(group: Standing, model_revision: str | None, most: int) -> str:
    """Why a request that needs ``model_revision`` (None: any) can't go to this group now; empty when it can.

    ``most``: requests that the group may have in flight, 0: unlimited.
    """
    if reason := why_not_ready(group):
        return reason
    if most and group.in_flight >= most:
        return f"full: {group.in_flight} requests in flight, its limit is {most}"
    if model_revision is not None and group.model_revision != model_revision:
        return f"serves model revision {group.model_revision!r}, the stream began under {model_revision!r}"
    return ""


def takes_requests(unknown: str, state: str, suspicion: str) -> bool:
    """The same as a yes or no, for a look at every group with every request."""
    return not unknown and state == "Serving" and not suspicion
