"""``random_rank`` whose kernels are each launched after the end of the one before: the other side of a comparison."""

from bireme.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before torch, as the rank itself

from benchmarks.gpu import random_rank
from bireme_worker.kernels.launch import plainly


def main() -> None:
    """The same rank otherwise."""
    with plainly():
        random_rank.main()


if __name__ == "__main__":
    main()
