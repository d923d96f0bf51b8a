"""Power of two choices: draw two groups, take the better.

Always taking the least loaded makes every router run to the same group between two updates; two random choices
balance nearly as well and survive stale figures (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing).
"""


def draw_two(count: int, draws: tuple[float, float]) -> list[int]:
    """Two different indices below ``count`` (the same one alone where there is one); ``draws`` are in [0, 1)."""
    first = int(draws[0] * count)
    if count == 1:
        return [first]
    second = int(draws[1] * (count - 1))
    return [first, second + 1 if second >= first else second]
