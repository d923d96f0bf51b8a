"""A pipeline of P stages does P requests in the time of one: groups at work are filled before idle ones are woken."""

from collections.abc import Sequence


def worth_waking(groups: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of the groups to draw from; each group is (requests in flight, stages).

    While any group at work has a stage without a request, idle groups are left asleep.
    """
    if any(0 < in_flight < stages for in_flight, stages in groups):
        return [index for index, (in_flight, _) in enumerate(groups) if in_flight]
    return list(range(len(groups)))
