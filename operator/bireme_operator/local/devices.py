"""Which GPUs a local stage computes on. In a cluster each pod has GPUs of its own; here every process sees all of them.

Stages side by side would all take the first ones, so each is told where its own begin, as long as there are enough;
then some share.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bireme.names import Env

_DEV: Final = Path("/dev")
_FREE: Final = frozenset({"auto", "cuda"})
"""What somebody may have asked for who leaves the choice to us."""


def own_device(place: int, tensor: int, asked: str, gpus: int) -> dict[str, str]:
    """The environment of the ``place``-th stage of this machine, of ``tensor`` ranks each."""
    rooms = gpus // tensor
    if rooms < 2 or asked not in _FREE:
        return {}
    return {Env.DEVICE: f"{asked}:{place % rooms * tensor}"}


def visible_gpus(environment: Mapping[str, str] = os.environ, devices: Path = _DEV) -> int:
    """How many GPUs a process started here sees."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([name for name in listed.split(",") if name.strip()])
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in devices.glob("nvidia*"))
