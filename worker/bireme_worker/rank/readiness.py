"""What a spare rank does before it knows its place: all of a start that takes time, and no memory of a GPU.

Imports of the kernels and of their compiler, and the driver's own start, are a second or two of a recovery. A context
would save a little more, but takes hundreds of megabytes of a device that the served model may need.
"""

import os
from importlib import import_module
from typing import Final

import torch

from bireme.names import Env

MODULES: Final = (
    "bireme_worker.kernels.ahead",
    "bireme_worker.kernels.attention",
    "bireme_worker.kernels.draw",
    "bireme_worker.kernels.gemv",
    "bireme_worker.kernels.layer",
    "bireme_worker.parallel.device_communicator",
)
"""What a rank with a GPU imports only when it has one."""


def get_ready() -> None:
    """Do it, where there is a GPU to compute on."""
    if os.environ.get(Env.DEVICE) == "cpu" or not torch.cuda.is_available():
        return
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for name in MODULES:
        import_module(name)
