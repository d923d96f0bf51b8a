"""A few groups of a new version go first and are judged; the others stay as they are until these have passed.

To hold groups back is what `partition` does, so a canary is a partition for a while. Whoever fails is rolled back like
any rollout that is given up, and gets no request from then on. The first version that ever served has no judge.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from bireme.api.status import Status
from bireme.names import GroupState, Reason
from bireme.wire.routes import version
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.figures import Figures, Served, together
from bireme_operator.plan.group import Group
from bireme_operator.plan.judgement import Judgement, Outcome, judge
from bireme_operator.plan.memory import Memory, Progress


def is_on_trial(desired: Desired, memory: Memory) -> bool:
    """Whether what is wanted has still to show that it is as good as what served before."""
    rendering, before = desired.rendering, desired.history.get(memory.good)
    if desired.rollout.canary is None or desired.stopping or not desired.replicas or before is None:
        return False
    if (before.revision, before.model_revision) == (rendering.revision, rendering.model_revision):
        return False
    known = memory.progress
    return known is None or known.key != rendering.key or not known.passed


def held_back(desired: Desired, memory: Memory) -> Desired:
    """Return the wish with as many groups held back as the canary leaves; ``trial`` of them are to be new."""
    policy, most = desired.rollout.canary, desired.replicas - desired.rollout.partition
    if policy is None or most < 1 or not is_on_trial(desired, memory):
        return desired
    kept = max(desired.replicas - min(policy.groups, most), 1)
    trial = min(policy.groups, most, desired.replicas - kept + desired.rollout.surge)
    if trial < 1:
        kept, trial = desired.replicas - 1, 1  # one group and no room beside it: it is judged by itself
    return replace(desired, rollout=replace(desired.rollout, partition=kept, trial=trial))


def assess(
    desired: Desired, memory: Memory, groups: Sequence[Group], figures: Figures | None, now: float
) -> Judgement | None:
    """Judge the canary of a wish that is `held_back`; None while there is none, or it does not serve yet."""
    policy, known = desired.rollout.canary, memory.progress
    if policy is None or not desired.rollout.trial or desired.paused:
        return None
    if known is None or known.key != desired.rendering.key or known.trial_since is None:
        return None
    if figures is None or figures.trial != known.trial_since:  # never by time: the operator before had another clock
        return Judgement(Outcome.HOLD, "holds: the routers' figures are being read")
    own = version(desired.revision, desired.model_revision)
    others = [served for name, served in figures.versions.items() if name != own]
    beside = any(group.memory.draining is None and not group.current(desired) for group in groups)
    canary = figures.versions.get(own, Served())
    judged = judge(policy, canary, together(others) if beside else None, now - figures.since)
    trouble = f"; not all routers could be read: {figures.trouble}" if figures.trouble else ""
    return replace(judged, message=judged.message + trouble)


def note(progress: Progress, judged: Judgement | None, desired: Desired, now: float) -> Progress:
    """Note when the canary began to serve, and what came of it."""
    if not desired.rollout.trial:
        return progress
    if progress.trial_since is None:
        return replace(progress, trial_since=now) if progress.updated >= desired.rollout.trial else progress
    if judged is None or judged.outcome is Outcome.HOLD or progress.failed:
        return progress
    if judged.outcome is Outcome.PASSED:
        return replace(progress, passed=judged.message)
    return replace(progress, failed=f"the canary {judged.message}", failed_by=Reason.CANARY_FAILED)


def trial_of(desired: Desired, memory: Memory) -> float | None:
    """Return for which trial the routers' figures are wanted, by its begin; None while nobody needs them."""
    known = memory.progress
    if not is_on_trial(desired, memory) or known is None or known.key != desired.rendering.key or known.failed:
        return None
    return known.trial_since


def weights(desired: Desired, memory: Memory, status: Status) -> dict[str, int]:
    """Return the shares of new requests by version: as many as groups serve it, none for a canary that failed."""
    serving = Counter(
        version(group.revision, group.model_revision)
        for group in status.groups
        if group.state in {GroupState.SERVING, GroupState.RELOADING}
    )
    own, known = version(desired.revision, desired.model_revision), memory.progress
    if known and known.key == desired.rendering.key and known.failed and known.failed_by == Reason.CANARY_FAILED:
        del serving[own]
        return dict(serving)
    return dict(serving) if is_on_trial(desired, memory) and 0 < serving[own] < serving.total() else {}
