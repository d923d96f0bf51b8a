"""The packed layout multiplies like the plain one."""

import pytest
import torch

from bireme_worker.models.matrix import multiply, pack


@pytest.mark.parametrize("outputs", [1, 16, 131, 1024, 3072])
@pytest.mark.parametrize("rows", [1, 2, 8, 17, 100])
def test_a_packed_matrix_gives_the_product_of_the_plain_one(outputs: int, rows: int) -> None:
    torch.manual_seed(outputs)
    x, matrix = torch.randn(rows, 96), torch.randn(outputs, 96)
    exact = x.double() @ matrix.double().t()
    ours, plain = multiply(x, pack(matrix), outputs), x @ matrix.t()
    assert ours.shape == (rows, outputs)
    assert (ours - exact).abs().max() <= 3 * max(float((plain - exact).abs().max()), 1e-5)


def test_other_dtypes_stay_as_they_are() -> None:
    matrix = torch.randn(8, 4).bfloat16()
    assert pack(matrix) is matrix
    assert torch.equal(multiply(torch.ones(1, 4).bfloat16(), matrix, 8), torch.ones(1, 4).bfloat16() @ matrix.t())
