"""Which image the workers of a revision have whose template names none: that with which it was made, for good.

An operator of another release has another default, and stages of two releases may not understand one another. So the
default is remembered with the revision when that is first made: lost stages, further groups, spares and the way back of
a failed rollout all have it. A new revision takes the operator's present default, and so does an old one that is asked
for when no group has it any more. So do all when there is a restart, which is how groups come to a new release; each
keeps the image that it has until its turn comes.
"""

from dataclasses import replace

from bireme_operator.plan.desired import Desired
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.observed import Observed


def remember_images(memory: Memory, wish: Desired, observed: Observed) -> Memory:
    """Note what the wanted revision is made with, and with a restart all others that may have to be made again."""
    known = memory.images if memory.restart is not None else _as_seen(observed)
    restarted = memory.restart not in {None, wish.restart}
    images = {wish.revision: wish.image, **known}
    if restarted:
        images = dict.fromkeys(images, wish.image)
    same = all(known.get(revision, image) == image for revision, image in images.items())
    stale = memory.stale_spares if same else memory.spares
    return replace(memory, images=images, restart=wish.restart, stale_spares=stale)


def images_needed(memory: Memory, wish: Desired) -> dict[str, str]:
    """Return those of the wanted revision, of what groups have, and of what a failed rollout goes back to."""
    needed = {wish.revision} | {group.revision for group in memory.groups.values()}
    if memory.good in wish.history:
        needed.add(wish.history[memory.good].revision)
    return {revision: image for revision, image in memory.images.items() if revision in needed}


def _as_seen(observed: Observed) -> dict[str, str]:
    """What an operator that remembered no images has made the revisions with."""
    return {pod.revision: pod.image for pod in (*observed.spares, *observed.pods) if pod.image and not pod.deleting}
