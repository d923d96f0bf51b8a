"""Which decoding sequences go into the next plan, so that every pipeline stage always has work.

A sequence's next token needs its last sample, which leaves the last stage ``stages`` plans after it entered the first.
So the decoding sequences are split over about ``stages`` plans in flight. One whose sample is still on its way is left
out, unless nothing else is to be done: waiting in the first stage still saves the trip to the coordinator and back.
"""

from collections.abc import Collection

from bireme_worker.engine.sequence import Sequence


def micro_batch(decoding: Collection[Sequence], step: int, stages: int) -> list[Sequence]:
    """Return the sequences for plan ``step``, most urgent first.

    They are those who waited longest for a plan, at most an even share; empty when all samples are on their way.
    """
    ripe = [sequence for sequence in decoding if sequence.last_step <= step - stages]
    return _oldest(ripe, _share(len(decoding), stages))


def early_batch(decoding: Collection[Sequence], stages: int) -> list[Sequence]:
    """The same when the first stage has nothing else to do: the samples that arrive next."""
    return _oldest(decoding, _share(len(decoding), stages))


def _share(count: int, stages: int) -> int:
    return -(-count // stages)


def _oldest(sequences: Collection[Sequence], count: int) -> list[Sequence]:
    if len(sequences) > count:
        sequences = sorted(sequences, key=lambda sequence: (sequence.last_step, sequence.order))[:count]
    return sorted(sequences, key=lambda sequence: sequence.order)
