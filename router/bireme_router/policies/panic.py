"""When more than half of the groups that call themselves serving are suspected, the suspicion itself is suspect.

Crowding all work on the few that are left would take them down too; so all are tried again (Envoy's panic threshold).
"""


def panics(serving: int, suspected: int) -> bool:
    """Whether suspicions are ignored now; ``suspected`` of the ``serving`` groups are."""
    return suspected * 2 > serving
