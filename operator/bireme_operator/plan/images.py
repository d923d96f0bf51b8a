"""Which image the workers of a revision have whose template names none: that with which it was made, for good.

An operator of another release has another default, and stages of two releases may not understand one another. So the
default is remembered with the revision when that is first made: lost stages, further groups, spares and a way back all
have it. A new revision takes the operator's present default. So does the present one when it is restarted, which is how
its groups come to a new release; each keeps the image that it has until its turn comes.
"""

from dataclasses import replace

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.observed import Observed


def remember_images(memory: Memory, wish: Desired, observed: Observed) -> Memory:
    """Note what the wanted revision is made with, and that of all others that may have to be made again."""
    known = memory.images if memory.restart is not None else _as_seen(observed)
    restarted = memory.restart not in {None, wish.restart}
    before = known.get(wish.revision)
    now = wish.image if restarted or before is None else before
    needed = {made.revision for made in wish.history.values()} | {group.revision for group in memory.groups.values()}
    images = {revision: image for revision, image in known.items() if revision in needed} | {wish.revision: now}
    stale = memory.stale_spares if before in {None, now} else memory.spares
    return replace(memory, images=images, restart=wish.restart, stale_spares=stale)


def _as_seen(observed: Observed) -> dict[str, str]:
    """What an operator that remembered no images has made the revisions with."""
    return {pod.revision: pod.image for pod in (*observed.spares, *observed.pods) if pod.image and not pod.deleting}
