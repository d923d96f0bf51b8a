"""How the leader's facts read in the words that status, router and people use. Pure.

Starting until the group first served; from then on whatever is not serving is Recovering, with the cause that says
most. Draining hides both, because whoever asked for it waits for the end of the requests only.
"""

from dataclasses import dataclass

from bireme.names import GroupState, Reason
from bireme.wire.control import Standing


@dataclass(frozen=True)
class Facts:
    """What ``judge`` looks at. ``cause`` None: nothing was lost since the group last served, or it never served;
    then ``trouble`` tells what went wrong on the way, if anything.
    """

    epoch: int
    formed: bool
    forming: bool
    loading: bool
    draining: bool
    front_up: bool
    front_message: str
    cause: tuple[str, str] | None
    trouble: str
    waits: tuple[str, ...]
    replaced_by: int


RETRY_AFTER_S = {
    GroupState.SERVING: 0.0,
    GroupState.DRAINING: 1.0,
    GroupState.RECOVERING: 1.0,
    GroupState.STARTING: 5.0,
    GroupState.FAILED: 5.0,
}


def judge(facts: Facts) -> Standing:
    """The group's state, reason and message."""
    state, reason, message = _judge(facts)
    return Standing(facts.epoch, state, reason, message, RETRY_AFTER_S[state])


def _judge(facts: Facts) -> tuple[GroupState, str, str]:
    if facts.replaced_by:
        return GroupState.FAILED, Reason.SUPERSEDED, f"incarnation {facts.replaced_by} leads this group now"
    if facts.draining:
        return GroupState.DRAINING, Reason.DRAIN_REQUESTED, "new work is refused, running requests finish"
    if facts.formed and facts.front_up:
        return GroupState.SERVING, Reason.NONE, ""
    if facts.cause is not None:
        reason, text = facts.cause
        return GroupState.RECOVERING, reason, _joined(text, facts)
    return GroupState.STARTING, *_starting(facts)


def _starting(facts: Facts) -> tuple[str, str]:
    if facts.formed:
        return Reason.PULLING, facts.front_message
    if facts.forming:
        return Reason.WARMING, _joined(facts.trouble, facts)
    return (Reason.LOADING if facts.loading else Reason.RENDEZVOUS), _joined(facts.trouble, facts)


def _joined(text: str, facts: Facts) -> str:
    waits = f"waits for {', '.join(facts.waits)}" if facts.waits else ""
    front = "" if facts.front_up else facts.front_message
    return "; ".join(dict.fromkeys(filter(None, (text, waits, front))))
