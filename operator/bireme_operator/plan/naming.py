"""A name belongs to the weights that first served under it: `spec.model.revision` is never given to others.

Streams are continued wherever the same revision is served, so other weights under a name that has served would be a lie
that no client could see. A wish that breaks the rule is not carried out: the groups keep what the name stands for, and
the status says what to write instead. A name under which nothing came to serve is free. Paths are compared within one
rendering of the pods only: where the pods themselves change, the same weights may well lie elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from bireme.names import Env
from bireme_operator.plan.desired import Desired
from bireme_operator.plan.group import Group
from bireme_operator.plan.memory import Memory
from bireme_operator.plan.rendering import Rendering

_KEPT: Final = 32
"""Names of a deployment that are remembered; those that serve now always are."""


def bound(wish: Desired, memory: Memory) -> tuple[Desired, str]:
    """Return the wish with every name standing for what it stood for, and what is wrong with the one it has, if so."""
    history = {key: made for key, made in wish.history.items() if not _taken(made, memory)}
    known = _taken(wish.rendering, memory)
    if not known:
        return replace(wish, history=history), ""
    message = (
        f"model revision {wish.model_revision} is the name of the weights at {known}, which have served under it: "
        f"give those at {wish.source} another spec.model.revision"
    )
    return replace(wish, history=history, environment={**wish.environment, Env.MODEL_PATH: known}), message


def remember_names(known: Mapping[str, str], groups: Sequence[Group]) -> Mapping[str, str]:
    """Note what the names stand for that groups serve under and that were not known yet."""
    served = {}
    for group in groups:
        if group.document is not None and group.verdict.serving and group.document.source:
            served[_key(group.memory.revision or "", group.document.model_revision)] = group.document.source
    if served.keys() <= known.keys():
        return known
    kept = {**served, **known}
    spare = [key for key in known if key not in served][: max(len(kept) - _KEPT, 0)]
    return {key: source for key, source in kept.items() if key not in spare}


def names_of(memory: Memory, revision: str) -> dict[str, str]:
    """Return where the weights lie that each name stands for, in pods of this rendering."""
    split = [(*key.split(" ", 1), source) for key, source in memory.sources.items()]
    return {name: source for made, name, source in split if made == revision}


def _taken(made: Rendering, memory: Memory) -> str:
    """Return the source that the name stands for already, or nothing if it may have this one."""
    known = memory.sources.get(_key(made.revision, made.model_revision), "")
    return known if made.source and made.source != known else ""


def _key(revision: str, model_revision: str) -> str:
    return f"{revision} {model_revision}"
