"""Which version a new request goes to while two are served: by the weights of the rollout.

A canary that answers everything with an error is always free, and would draw all requests without its weight. Versions
without a weight get none while any other can serve; without weights at all the version does not matter.
"""

from collections.abc import Iterable, Mapping


def version_for(available: Iterable[str], weights: Mapping[str, int], draw: float) -> str | None:
    """The version drawn from those ``available`` now, or None: any. ``draw`` is in [0, 1)."""
    weighed = sorted((name, weights[name]) for name in set(available) if weights.get(name, 0) > 0)
    at = draw * sum(weight for _, weight in weighed)
    for name, weight in weighed:
        if at < weight:
            return name
        at -= weight
    return None
