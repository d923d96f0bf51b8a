"""Every tensor accounted for: what the model expects is there in the right shape, and nothing else is.

All faults come in one message, because a checkpoint of the wrong model has hundreds and the reader needs to see which
kind.
"""

import re
from collections.abc import Iterable, Mapping

from bireme_worker.checkpoints.errors import CheckpointError, MissingTensor, UnexpectedTensor, WrongShape
from bireme_worker.checkpoints.reader import CheckpointReader

# Old exports carry the rotary table, which every loader computes anew.
HARMLESS = re.compile(r".*\.rotary_emb\.inv_freq")
TIED_COPY = "lm_head.weight"
MAX_LISTED = 20


def account(expected: Mapping[str, tuple[int, ...]], reader: CheckpointReader) -> None:
    """Compare a model's whole tensor set with a checkpoint's.

    A ``lm_head.weight`` beside tied embeddings is a copy that nobody reads and is let pass.

    Raises:
        MissingTensor, WrongShape, UnexpectedTensor: the gravest kind found; the message lists all of all kinds.
    """
    found = {name: info.shape for name, info in reader.tensors.items()}
    missing = sorted(expected.keys() - found.keys())
    wrong = sorted(name for name in expected.keys() & found.keys() if tuple(expected[name]) != found[name])
    unexpected = sorted(name for name in found.keys() - expected.keys() if not _harmless(name, reader))
    parts = [
        *_part("missing", missing),
        *_part("wrong shape", [f"{name} is {found[name]}, must be {tuple(expected[name])}" for name in wrong]),
        *_part("unexpected", unexpected),
    ]
    kinds: list[tuple[list[str], type[CheckpointError]]] = [
        (missing, MissingTensor),
        (wrong, WrongShape),
        (unexpected, UnexpectedTensor),
    ]
    for names, kind in kinds:
        if names:
            raise kind(
                f"the checkpoint does not fit its config.json: {'; '.join(parts)}: "
                "copy the checkpoint again, config.json and weights from the same source"
            )


def _harmless(name: str, reader: CheckpointReader) -> bool:
    tied = bool(reader.config.get("tie_word_embeddings", False))
    return HARMLESS.fullmatch(name) is not None or (tied and name == TIED_COPY)


def _part(kind: str, items: list[str]) -> Iterable[str]:
    if not items:
        return []
    more = f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    return [f"{len(items)} {kind}: {', '.join(items[:MAX_LISTED])}{more}"]
