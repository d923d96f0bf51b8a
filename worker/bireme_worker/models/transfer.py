"""Host values on their way to a device, without anybody waiting for it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def upload(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """``values`` on ``device``, in stream order; on the CPU the same memory.

    A copy from pageable memory would hold the host up until all earlier steps are done. torch keeps the pinned copy
    until the device has read it, so the caller may overwrite ``values`` at once.
    """
    tensor: torch.Tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def upload_into(target: torch.Tensor, values: npt.NDArray[Any]) -> None:
    """The same into memory whose address stays."""
    tensor: torch.Tensor = torch.from_numpy(values)
    target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)
