"""Why a deployment is as it is, in sentences: of its conditions, its groups' states and timings, and its events. Pure.

The words behind a reason are those of `bireme.names`, so that the sentence and the reference never differ.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bireme.names import ConditionType, Event, GroupState, Reason

WHOLE: Final = -1
"""Instead of a group's index: it is about the deployment as a whole."""

_NOTE: Final = re.compile(r"group (\d+): (.*)", re.DOTALL)
_NOTES: Final = re.compile(r"\d+ groups \(([\d, ]+)(?:, …)?\); group \d+: (.*)", re.DOTALL)
_BREATH_S: Final = 1.0
_WORTH_MS: Final = 50
_BAD: Final = {
    ConditionType.READY: "False",
    ConditionType.AVAILABLE: "False",
    ConditionType.SCHEDULED: "False",
    ConditionType.STALLED: "True",
}
_STEPS: Final = {
    "detectMilliseconds": "seeing it",
    "scheduleMilliseconds": "finding a place",
    "startMilliseconds": "starting processes",
    "loadMilliseconds": "loading weights",
    "rendezvousMilliseconds": "forming the epoch",
    "warmMilliseconds": "warming up",
}
_RESUMED: Final = {
    Reason.PAUSED: "goes on",
    Reason.BUDGET_EXHAUSTED: "gives it a fresh restart budget",
    Reason.BAD_CONFIGURATION: "tries it once more, when the cause is mended",
    Reason.BAD_CHECKPOINT: "tries it once more, when the cause is mended",
    Reason.ROLLED_BACK: "tries that rollout once more",
    Reason.CANARY_FAILED: "tries that rollout once more",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "tries that rollout once more",
    Reason.NATIVE_GANG_IGNORED: "asks the native scheduler once more, when the cluster keeps gangs",
}
"""What `bireme resume` does about it."""
_WORDS: Final[Mapping[str, str]] = {
    Event.STAGE_REPLACED: "{message}",
    Event.STAGE_RESTARTED: "its process was started again in place ({message})",
    Event.GROUP_SERVING: "it served again, {message}",
    Event.GROUP_FAILED: "it was given up: {message}",
    Event.GROUP_RELOADED: "it served another checkpoint, {message}",
    Event.GROUP_CREATED: "it was made, {message}",
    Event.GROUP_MOVES: "{message}",
    Event.GROUP_DRAINED: "it was gone: {message}",
}


@dataclass(frozen=True)
class Told:
    """One event: when (Unix seconds), which, of which group or `WHOLE`, with which words."""

    at: float
    event: str
    group: int
    message: str


def read_note(at: float, event: str, note: str) -> Iterator[Told]:
    """Take an event's note apart: it is about one group, about many at once, or about the deployment."""
    if one := _NOTE.fullmatch(note):
        yield Told(at, event, int(one[1]), one[2])
    elif many := _NOTES.fullmatch(note):
        for index in many[1].split(", "):
            yield Told(at, event, int(index), many[2])
    else:
        yield Told(at, event, WHOLE, note)


def tell(content: Mapping[str, Any], told: Sequence[Told], now: float) -> list[str]:
    """Return one paragraph about the deployment and one about each group."""
    status = content.get("status") or {}
    if not status.get("conditions"):
        return ["Nothing is said of it yet: no operator has looked at it. Does bireme-operator run?"]
    wanted, serving = content["spec"].get("replicas", 1), status.get("readyReplicas", 0)
    first = [f"{content['metadata']['name']}: {serving} of {wanted} groups serve."]
    first += [_condition(one, now) for one in status["conditions"] if _BAD.get(one["type"]) == one["status"]]
    first += [f"At {_clock(one.at)} {one.event}: {one.message}." for one in told if one.group == WHOLE][-1:]
    failed = [group for group in status["groups"] if group["state"] == GroupState.FAILED]
    first += _resumed({one["reason"] for one in [*status["conditions"], *failed]}, content["metadata"]["name"])
    groups = [_of_group(group, _since_it_was_made(told, group["index"]), now) for group in status["groups"]]
    return [" ".join(first), *groups]


def _since_it_was_made(told: Sequence[Told], index: int) -> Sequence[Told]:
    """What is about this group, and not about one before it that had the same index."""
    own = [one for one in told if one.group == index]
    made = max((n for n, one in enumerate(own) if one.event == Event.GROUP_CREATED), default=0)
    return own[made:]


def all_serve(content: Mapping[str, Any]) -> bool:
    """Whether every group that there is serves, and there is one."""
    groups = (content.get("status") or {}).get("groups") or ()
    return bool(groups) and all(group["state"] == GroupState.SERVING for group in groups)


def seconds(time: str) -> float:
    """Return the Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(time).timestamp()


def ago(at: float, now: float) -> str:
    """Return how long ago that was, in words."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if now - at >= 2 * size:
            return f"{int((now - at) // size)} {unit} ago"
    return f"{max(now - at, 0):.0f} s ago"


def _since(time: str, now: float) -> str:
    return f"since {time} ({ago(seconds(time), now)})"


def _because(reason: str, message: str) -> str:
    """The reason in its own words, with the message that says more."""
    if reason in {"", Reason.NONE.value}:
        return f": {message}" if message else ""
    known = next((word.about for word in Reason if word.value == reason), "")
    about = f" ({reason}: {known.rstrip('.')})" if known else f" ({reason})"
    return about + (f": {message}" if message else "")


def _condition(condition: Mapping[str, Any], now: float) -> str:
    holds = "It is" if condition["status"] == "True" else "It is not"
    kind = {"Ready": "ready", "Available": "available", "Scheduled": "placed", "Stalled": "stalled"}[condition["type"]]
    why = _because(condition["reason"], condition.get("message", ""))
    return f"{holds} {kind} {_since(condition['lastTransitionTime'], now)}{why}."


def _resumed(reasons: Collection[str], name: str) -> list[str]:
    paused = "It is paused; " if Reason.PAUSED.value in reasons else ""
    does = [does for reason, does in _RESUMED.items() if reason.value in reasons]
    return [f"{paused}`bireme resume {name}` {does[0]}."] if does else []


def _of_group(group: Mapping[str, Any], told: Sequence[Told], now: float) -> str:
    since = _since(group["since"], now)
    if group["state"] == GroupState.SERVING:
        state = f"serves epoch {group.get('epoch', 0)} {since}"
    else:
        state = f"is {group['state']} {since}"
    state += _because(group["reason"], group.get("message", ""))
    return " ".join(filter(None, (f"Group {group['index']} {state}.", _history(group, told), _timings(group))))


def _history(group: Mapping[str, Any], told: Sequence[Told]) -> str:
    """The newest loss and what followed it; where there was none, that."""
    lost = max((n for n, one in enumerate(told) if one.event == Event.GROUP_LOST_PART), default=None)
    restarts = group.get("restarts", 0)
    if lost is None:
        if restarts:
            return f"Its parts were restarted {_times(restarts)}; the events of that are gone (they are kept an hour)."
        return "Nothing of it was lost."
    first = _with_its_cause(told, lost)
    began = told[first].at
    loss = told[lost]
    said = [f"at {_clock(loss.at)} it lost a part ({loss.message})"]
    for number, one in enumerate(told[first:], first):
        if number != lost and one.event in _WORDS:
            after = _WORDS[one.event].format(message=one.message)
            said.append(f"{max(one.at - began, 0):.1f} s later {after}")
        if one.event == Event.GROUP_SERVING and number > lost:
            break
    counted = f" Its parts were restarted {_times(restarts)} in all." if restarts else ""
    return f"Its last recovery: {'; '.join(said)}.{counted}"


def _with_its_cause(told: Sequence[Told], lost: int) -> int:
    """The stages that are made anew are told in the same breath as the loss, some of them before it."""
    first = lost
    while first and told[lost].at - told[first - 1].at < _BREATH_S and told[first - 1].event != Event.GROUP_SERVING:
        first -= 1
    return first


def _timings(group: Mapping[str, Any]) -> str:
    timings = group.get("timings") or {}
    total = timings.get("totalMilliseconds")
    if total is None:
        return ""
    steps = [
        f"{words} {timings[step] / 1000:.1f} s" for step, words in _STEPS.items() if timings.get(step, 0) >= _WORTH_MS
    ]
    parts = f" ({', '.join(steps)})" if steps else ""
    return f"Its last start or recovery took {total / 1000:.1f} s{parts}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
