"""Copies by several threads: everything arrives, whatever its size, layout or dtype, and what fails is told."""

import pytest
import torch

from bireme_worker.models import uploads
from bireme_worker.models.uploads import Uploads

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(), (0,), (7,), (300, 50), (3, 5, 7)])
def test_a_tensor_of_any_size_arrives_whole(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK_BYTES", 64)
    source, target = torch.randn(shape), torch.full(shape, torch.nan)
    with Uploads(CPU) as copies:
        copies.copy_whole(source, target)
    assert torch.equal(source, target)


def test_other_layouts_and_dtypes_are_converted() -> None:
    source, target = torch.randn(6, 4), torch.zeros(4, 6, dtype=torch.bfloat16)
    with Uploads(CPU) as copies:
        copies.copy_whole(source.t(), target)
    assert torch.equal(source.t().to(torch.bfloat16), target)


def test_what_a_thread_fails_with_is_raised_at_the_end() -> None:
    def read() -> torch.Tensor:
        raise ValueError("shorter than it was")

    with pytest.raises(ValueError, match="shorter than it was"), Uploads(CPU) as copies:
        copies.copy(read, torch.empty(1))
