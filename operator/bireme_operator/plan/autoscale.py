"""How many groups the load needs, by what the routers say: requests that wait, and the time to the first token.

More groups are wanted at once, fewer only when fewer would have done for a while: a group takes long to start and
little to keep. None are left only after a time without any request; the first that comes then brings one back.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from bireme.names import GroupState
from bireme_operator.plan.demand import Demand
from bireme_operator.plan.desired import Desired, ScalingPolicy
from bireme_operator.plan.memory import Memory, Scaling

_SERVING: Final = (GroupState.SERVING, GroupState.RELOADING)
_TOO_SLOW: Final = 1.1
"""A time to the first token within a tenth of its target is taken for the target."""
_QUICK: Final = 0.5
"""Below this share of the target one group fewer is tried."""


@dataclass(frozen=True)
class Scaled:
    """What is wanted with that many groups, what to remember of it, and when it is to be judged again."""

    desired: Desired
    memory: Memory
    due: float | None = None


def autoscaled(desired: Desired, memory: Memory, demand: Demand | None, now: float) -> Scaled:
    """Decide; ``demand`` is None while no router could be read: then nothing changes."""
    policy = desired.autoscaling
    if policy is None or desired.replicas_owner or desired.stopping:
        return Scaled(desired, replace(memory, scaling=None))
    known = memory.scaling
    if known is None or known.seed != desired.replicas:
        known = Scaling(desired.replicas, min(max(desired.replicas, policy.fewest), policy.most), now)
    if demand is not None and not desired.paused:
        serving = sum(group.state in _SERVING and group.draining is None for group in memory.groups.values())
        known = _judged(policy, known, demand, serving, now)
    dues = [known.lower_since + policy.calm_s] if known.lower_since is not None else []
    if policy.idle_s is not None and known.idle_since is not None and known.replicas:
        dues.append(known.idle_since + policy.idle_s)
    due = min((due for due in dues if due > now), default=None)
    return Scaled(replace(desired, replicas=known.replicas), replace(memory, scaling=known), due)


def needed(policy: ScalingPolicy, demand: Demand, serving: int, replicas: int) -> int:
    """Return how many groups the load needs, within the limits; never none, which is a matter of time alone."""
    needs = [1, policy.fewest, ceil(demand.running / policy.slots)]
    if policy.queued is not None:
        needs.append(ceil(demand.waiting / policy.queued))
    if policy.first_token_s is not None and demand.first_token_s is not None:
        needs.append(_by_first_token(demand.first_token_s / policy.first_token_s, serving, replicas))
    return min(max(needs), policy.most)


def _by_first_token(ratio: float, serving: int, replicas: int) -> int:
    if ratio <= _QUICK:
        return replicas - 1
    if ratio <= _TOO_SLOW or serving < replicas:
        return replicas  # good enough, or help is on its way
    return max(replicas + 1, min(ceil(replicas * ratio), 2 * replicas))


def _judged(policy: ScalingPolicy, known: Scaling, demand: Demand, serving: int, now: float) -> Scaling:
    idle_since = None if demand.busy else known.idle_since if known.idle_since is not None else now
    known = replace(known, idle_since=idle_since)
    if policy.fewest == 0 and not demand.busy:
        if not known.replicas:
            return known
        if policy.idle_s is not None and idle_since is not None and now - idle_since >= policy.idle_s:
            return replace(known, replicas=0, lower_since=None)
    need = needed(policy, demand, serving, known.replicas)
    if need >= known.replicas:
        return replace(known, replicas=need, lower_since=None)
    if known.lower_since is None:
        return replace(known, lower_since=now, lower=need)
    lower = max(known.lower, need)
    if now - known.lower_since < policy.calm_s:
        return replace(known, lower=lower)
    return replace(known, replicas=lower, lower_since=None)
