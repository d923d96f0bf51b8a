"""Who holds which block."""

import pytest

from bireme_worker.engine.block_pool import BlockPool


def test_block_0_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert sorted(pool.allocate() for _ in range(4)) == [1, 2, 3, 4]
    assert (pool.available, pool.used, pool.total) == (0, 4, 4)


def test_a_shared_block_comes_back_with_its_last_holder() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.label(block, b"x")
    pool.hold(block)
    pool.release(block)
    assert pool.used == 1
    pool.release(block)
    assert pool.used == 0


def test_a_labelled_block_is_found_until_its_place_is_needed_and_the_oldest_goes_first() -> None:
    pool = BlockPool(4)
    old, young, blank = (pool.allocate() for _ in range(3))
    pool.label(old, b"old")
    pool.label(young, b"young")
    for block in (old, young, blank):
        pool.release(block)
    assert pool.allocate() == blank
    assert pool.find(b"old") == old
    assert pool.allocate() == old
    assert pool.find(b"old") is None
    assert pool.find(b"young") == young


def test_a_block_that_was_used_again_is_overwritten_later() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(), pool.allocate()
    for block, label in ((first, b"1"), (second, b"2")):
        pool.label(block, label)
        pool.release(block)
    pool.hold(first)
    pool.release(first)
    assert pool.allocate() == second


def test_the_first_block_of_equal_content_keeps_the_label() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    pool.label(first, b"same")
    pool.label(second, b"same")
    pool.release(second)
    assert pool.find(b"same") == first
    assert pool.available == 2


def test_an_unlabelled_block_is_not_found_any_more() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.label(block, b"x")
    pool.unlabel(block)
    pool.unlabel(block)
    assert pool.find(b"x") is None


def test_a_block_released_twice_is_a_fault_of_the_caller() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(block)
