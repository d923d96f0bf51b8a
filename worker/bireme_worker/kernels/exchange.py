"""Tensors between the GPUs of one host, by kernels that read and write each other's memory and never hang.

Inside a CUDA graph nobody can abort NCCL, and a spin without end loses the GPU. Here every spin leaves when a word in
host memory is set, peers are found through a table on the device, and counters live on the device: a captured graph
stays valid when a peer is replaced (docs/design.md, section 5; proved by benchmarks/gpu/survivor_rule.py).

Programs look at the host's word in turns, and the one that finds it set tells the others by a word on the device. When
all looked at once, the reads over PCIe took 2 ms and made this rank late; its peer waited as long, looked too, and was
late in turn (seen on H200s: two ranks took turns so for seconds).

A transfer is cut into parts, one program each. A part has its own counter, its own place and its own word, so parts
never wait for each other, and every word rises by one per turn. Two places in turn make a closing barrier unnecessary:
who is at turn n + 1 has read turn n.
"""

from typing import Final

import triton
import triton.language as tl

BLOCK_BYTES: Final = 8192
"""What a program moves at a time, at least."""
WIDE_BLOCK_BYTES: Final = 32768
"""And at most: as much as its registers hold."""
LOOK_EVERY: Final = tl.constexpr(256)
"""Spins between two looks whether it is all over."""
MOST_PARTS: Final = 128
"""Programs of one transfer at most: all fit on the device at once, next to nothing waits for a place."""


@triton.jit  # type: ignore[untyped-decorator]
def _word(base: tl.tensor, offset: tl.tensor) -> tl.tensor:
    return (base + offset).to(tl.pointer_type(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _await(word: tl.tensor, turn: tl.tensor, abort: tl.tensor, halted: tl.tensor) -> None:
    """Spin until ``word`` has reached ``turn`` (both wrap), or ``abort`` or ``halted`` is set."""
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    spins = 0
    stop = 0
    while (turn - seen > 0) & (stop == 0):
        seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        spins += 1
        if spins % LOOK_EVERY == 0:
            stop = tl.load(halted, volatile=True)
            if spins // LOOK_EVERY % tl.num_programs(0) == tl.program_id(0):
                stop |= tl.load(abort, volatile=True)
                if stop != 0:
                    tl.store(halted, 1)


@triton.jit  # type: ignore[untyped-decorator]
def share(
    x: tl.tensor,
    out: tl.tensor,
    table: tl.tensor,
    turns: tl.tensor,
    abort: tl.tensor,
    halted: tl.tensor,
    elements: tl.tensor,
    tiles: tl.tensor,
    stride: tl.constexpr,
    words_at: tl.constexpr,
    rank: tl.constexpr,
    world: tl.constexpr,
    parts: tl.constexpr,
    block: tl.constexpr,
    gather: tl.constexpr,
) -> None:
    """Sum ``x [elements]`` over ranks, in rank order, into ``out``; with ``gather`` lay all side by side there instead.

    Each rank writes into the others' memory, which needs no answer, and reads its own. ``table [world]``: addresses of
    the ranks' memory, which begins with two halves of ``world`` × ``parts`` × ``stride`` bytes, a place per sender and
    part; at ``words_at`` lie ``world × parts`` words, one per sender and part. ``out`` may be ``x``.
    """
    part = tl.program_id(0)
    kind = x.dtype.element_ty
    turn = tl.load(turns + part) + 1
    half = (turn & 1) * world
    begin = part.to(tl.int64) * tiles * block
    lanes = tl.arange(0, block)
    for tile in range(tiles):
        at = tile * block + lanes
        inside = begin + at < elements
        values = tl.load(x + begin + at, mask=inside)
        for peer in tl.static_range(world):
            if peer != rank:
                box = _place(tl.load(table + peer), half + rank, part, parts, stride, kind)
                tl.store(box + at, values, mask=inside)
    tl.debug_barrier()
    for peer in tl.static_range(world):
        if peer != rank:
            theirs = _word(tl.load(table + peer), words_at + (rank * parts + part) * 4)
            tl.atomic_xchg(theirs, turn, sem="release", scope="sys")
    mine = tl.load(table + rank)
    for peer in tl.static_range(world):
        if peer != rank:
            _await(_word(mine, words_at + (peer * parts + part) * 4), turn, abort, halted)
    tl.debug_barrier()
    for tile in range(tiles):
        at = tile * block + lanes
        inside = begin + at < elements
        own = tl.load(x + begin + at, mask=inside)
        total = tl.zeros([block], _wide(own).dtype)
        for peer in tl.static_range(world):
            if peer == rank:
                values = own
            else:
                box = _place(mine, half + peer, part, parts, stride, kind)
                values = tl.load(box + at, mask=inside, cache_modifier=".cg")
            if gather:
                tl.store(out + peer * elements + begin + at, values, mask=inside)
            elif peer == 0:
                total = _wide(values)
            else:
                total += _wide(values)
        if not gather:
            tl.store(out + begin + at, total.to(kind), mask=inside)
    tl.store(turns + part, turn)


@triton.jit  # type: ignore[untyped-decorator]
def _place(
    base: tl.tensor,
    number: tl.tensor,
    part: tl.tensor,
    parts: tl.constexpr,
    stride: tl.constexpr,
    kind: tl.constexpr,
) -> tl.tensor:
    """Where the part of sender ``number``, both halves counted, lies in the memory at ``base``."""
    return _aligned(base + (number * parts + part).to(tl.int64) * stride, kind)


@triton.jit  # type: ignore[untyped-decorator]
def _aligned(address: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """A pointer that the compiler may move 16 bytes at; it can't know that of an address from a table."""
    return tl.multiple_of(address.to(tl.pointer_type(kind)), 16)


@triton.jit  # type: ignore[untyped-decorator]
def _wide(values: tl.tensor) -> tl.tensor:
    """Half precision is summed in single."""
    return values.to(tl.float32) if values.dtype.primitive_bitwidth == 16 else values


@triton.jit  # type: ignore[untyped-decorator]
def post(
    x: tl.tensor,
    table: tl.tensor,
    turns: tl.tensor,
    abort: tl.tensor,
    halted: tl.tensor,
    elements: tl.tensor,
    tiles: tl.tensor,
    box_at: tl.constexpr,
    arrived_at: tl.constexpr,
    taken_at: tl.constexpr,
    stride: tl.constexpr,
    parts: tl.constexpr,
    places: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Lay ``x [elements]``, 32-bit words, into the receiver's box, a ring of ``places`` (a power of two).

    Waits while it is full.
    ``table``: addresses of one's own memory and the receiver's. Offsets in bytes: the box and its ``arrived`` words in
    the receiver's memory, the words ``taken``, which the receiver writes, in one's own.
    """
    part = tl.program_id(0)
    turn = tl.load(turns + part) + 1
    _await(_word(tl.load(table), taken_at + part * 4), turn - places, abort, halted)
    tl.debug_barrier()
    theirs = tl.load(table + 1)
    place = ((turn & (places - 1)) * parts + part).to(tl.int64) * stride
    box = _aligned(theirs + box_at + place, tl.int32)
    begin = part.to(tl.int64) * tiles * block
    for tile in range(tiles):
        at = tile * block + tl.arange(0, block)
        tl.store(box + at, tl.load(x + begin + at, mask=begin + at < elements), mask=begin + at < elements)
    tl.debug_barrier()
    tl.atomic_xchg(_word(theirs, arrived_at + part * 4), turn, sem="release", scope="sys")
    tl.store(turns + part, turn)


@triton.jit  # type: ignore[untyped-decorator]
def take(
    out: tl.tensor,
    table: tl.tensor,
    turns: tl.tensor,
    abort: tl.tensor,
    halted: tl.tensor,
    elements: tl.tensor,
    tiles: tl.tensor,
    box_at: tl.constexpr,
    arrived_at: tl.constexpr,
    taken_at: tl.constexpr,
    stride: tl.constexpr,
    parts: tl.constexpr,
    places: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The other half of ``post``: ``table`` has one's own address and the sender's."""
    part = tl.program_id(0)
    turn = tl.load(turns + part) + 1
    mine = tl.load(table)
    _await(_word(mine, arrived_at + part * 4), turn, abort, halted)
    tl.debug_barrier()
    place = ((turn & (places - 1)) * parts + part).to(tl.int64) * stride
    box = _aligned(mine + box_at + place, tl.int32)
    begin = part.to(tl.int64) * tiles * block
    for tile in range(tiles):
        at = tile * block + tl.arange(0, block)
        values = tl.load(box + at, mask=begin + at < elements, cache_modifier=".cv")
        tl.store(out + begin + at, values, mask=begin + at < elements)
    tl.debug_barrier()
    tl.atomic_xchg(_word(tl.load(table + 1), taken_at + part * 4), turn, sem="release", scope="sys")
    tl.store(turns + part, turn)
