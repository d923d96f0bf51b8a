"""What to do with an answer that is not 200: hand it to the client, or ask another group.

Only a refusal that proves that nothing was computed may be asked again: the worker says so by x-bireme-unprocessed.
A client's own mistake (4xx) is one everywhere, so it is passed on once.
"""

from bireme.names import Admission


def asks_elsewhere(status: int, *, unprocessed: bool, resuming: bool, others: bool) -> bool:
    """Whether a refused request looks for another group, waiting for one if need be.

    ``others``: another group would take it now. ``resuming``: the client holds part of the answer already, so passing
    the refusal on would break its stream.
    """
    match status:
        case Admission.NOT_SERVING:
            return unprocessed
        case Admission.QUEUE_FULL:
            return unprocessed and (others or resuming)
        case Admission.CONFLICT:
            return resuming
        case _:
            return False
