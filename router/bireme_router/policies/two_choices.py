"""Power of two choices: draw two groups, take the one with less outstanding work.

Always taking the least loaded makes every router run to the same group between two updates; two random choices
balance nearly as well and survive stale figures (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing).
"""

from collections.abc import Sequence


def two_choices(loads: Sequence[float], draws: tuple[float, float]) -> int:
    """The index of the less loaded of two different entries of ``loads``, which must not be empty.

    ``draws`` are two numbers in [0, 1). On a tie the first drawn wins, so that ties spread evenly.
    """
    count = len(loads)
    first = int(draws[0] * count)
    if count == 1:
        return first
    second = int(draws[1] * (count - 1))
    if second >= first:
        second += 1
    return second if loads[second] < loads[first] else first
