"""The idle share counts kernels that overlap once."""

from benchmarks.gpu.solo import union_us


def test_time_with_a_kernel_is_counted_once_where_kernels_overlap() -> None:
    assert union_us([(4, 6), (0, 2), (1, 3), (1, 2)]) == 5
    assert union_us([]) == 0
