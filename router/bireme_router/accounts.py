"""What this router has open on each group: the primary signal of load, free of any polling lag.

Kept by (pod, epoch): when a group re-forms, work of the old epoch no longer weighs on the new one. How fast a pod is
stays with the pod, for its hardware does not change with the epoch.
"""

from collections.abc import Callable

from bireme_router.policies.cost import Cost, Pace, Work, blocks
from bireme_router.policies.eligible import Key
from bireme_router.policies.speed import (
    DECODE_GUESS,
    PREFILL_GUESS,
    STEPS_GUESS,
    WEIGHTS_BLOCKS,
    Rate,
    relative,
    usual,
)


class Meter:
    """What one pod has shown of its speed: ``policies.speed``."""

    def __init__(self) -> None:
        self.prefill = Rate()
        """Uncached prompt tokens."""
        self.decode = Rate()
        """Block-tokens: tokens of one stream times the blocks that were active."""
        self.steps = Rate()
        """The same with the reading of the weights, in blocks: what compares groups under different load."""


class Account:
    """Open requests on one (pod, epoch) and the tokens still expected of them."""

    def __init__(self, key: Key, label: str, meter: Meter) -> None:
        self.key = key
        self.label = label
        self.meter = meter
        self.outstanding = 0
        self.prefill = 0
        """The part of ``outstanding`` that is uncached prompt."""
        self.blocks = 0.0
        """KV blocks that the open requests hold or will, once their prompts are computed."""
        self.leases: set[Lease] = set()


class Lease:
    """One attempt's place on a group, from the decision to send until its end, whatever that is."""

    __slots__ = (
        "_account",
        "_ahead",
        "_blocks",
        "_choices",
        "_closed",
        "_decode",
        "_first",
        "_on_release",
        "_prefill",
        "_taken",
        "_tokens",
        "abandon",
        "cached_share",
        "predicted_share",
        "revision",
        "touched",
        "version",
        "where",
    )

    def __init__(
        self,
        account: Account,
        cost: Cost,
        where: "Whereabouts",
        on_release: Callable[[], None],
        *,
        cached_share: float = 0.0,
        predicted_share: float = 0.0,
        revision: str = "",
        version: str = "",
        now: float = 0.0,
    ) -> None:
        self._account = account
        self._prefill = max(round(cost.prefill * (1.0 - cached_share)), 1)
        self._decode = cost.decode
        self._choices = cost.choices
        self._blocks = blocks(cost.prefill, cost.choices)
        self._on_release = on_release
        self._closed = False
        self._taken = now
        self._first = 0.0
        self._tokens = 0
        self._ahead = account.prefill
        self.where = where
        self.cached_share = cached_share
        """Share of the prompt that is not charged, because the group is believed to have it."""
        self.predicted_share = predicted_share
        """What the router's history says of it, before trust."""
        self.revision = revision
        """The model revision that the group said it serves."""
        self.version = version
        """That and the rendering of its pods, see `bireme.wire.routes`."""
        self.touched = now
        """When the attempt last brought something, on the loop's clock; kept by the attempt."""
        self.abandon: Callable[[str], None] = _nobody_listens
        """Ends the attempt as broken; set while it runs."""
        account.prefill += self._prefill
        account.outstanding += self._prefill + self._decode
        account.blocks += self._blocks
        account.leases.add(self)

    @property
    def key(self) -> Key:
        """Where the request is."""
        return self._account.key

    def opened(self, prompt_tokens: int) -> None:
        """The group counted the prompt: the guess is replaced."""
        if self._prefill:
            self._set_prefill(max(round(prompt_tokens * (1.0 - self.cached_share)), 1))
            self._set_blocks(blocks(prompt_tokens, self._choices))

    def emitted(self, tokens: int, now: float) -> None:
        """Tokens came: the prefill is over, and so much less is to be decoded."""
        if self._prefill:
            self._prefilled(now)
        decoded = min(tokens, self._decode)
        self._account.outstanding -= decoded
        self._decode -= decoded
        self._tokens += tokens
        self.touched = now

    def release(self) -> None:
        """The attempt is over. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        self._decoded()
        self._set_prefill(0)
        self._set_blocks(0.0)
        self._account.outstanding -= self._decode
        self._account.leases.discard(self)
        self._on_release()

    def _prefilled(self, now: float) -> None:
        account = self._account
        done = self._prefill + self._ahead
        account.meter.prefill = account.meter.prefill.learned(done, now - self._taken)
        self._first = now
        self._set_prefill(0)

    def _decoded(self) -> None:
        """All tokens after the first, at the blocks that are active now: what the group has shown of its decoding."""
        steps = (self._tokens - self._choices) / self._choices
        if self._first and steps > 0.0:
            account = self._account
            seconds = self.touched - self._first
            meter = account.meter
            meter.decode = meter.decode.learned(steps * account.blocks, seconds)
            meter.steps = meter.steps.learned(steps * (account.blocks + WEIGHTS_BLOCKS), seconds)

    def _set_prefill(self, tokens: int) -> None:
        self._account.prefill += tokens - self._prefill
        self._account.outstanding += tokens - self._prefill
        self._prefill = tokens

    def _set_blocks(self, held: float) -> None:
        self._account.blocks += held - self._blocks
        self._blocks = held


class Whereabouts:
    """How to reach a group's leader."""

    __slots__ = ("group", "http", "token")

    def __init__(self, group: str, http: str, token: str) -> None:
        self.group = group
        self.http = http
        self.token = token


class Accounts:
    """All accounts; those of ended epochs stay until their last request is gone."""

    def __init__(self) -> None:
        self._accounts: dict[Key, Account] = {}
        self._meters: dict[str, Meter] = {}
        self._fleet = Pace(PREFILL_GUESS, DECODE_GUESS)
        self._paces: dict[str, Pace] = {}

    def of(self, key: Key, label: str) -> Account:
        """The account of ``key``, opened when it is first asked for."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, label, self._meter(key.pod))
        return account

    def in_flight(self, key: Key) -> int:
        """Open requests on ``key``."""
        account = self._accounts.get(key)
        return len(account.leases) if account else 0

    def outstanding(self, key: Key) -> int:
        """Tokens still expected of ``key``."""
        account = self._accounts.get(key)
        return account.outstanding if account else 0

    def prefill(self, key: Key) -> int:
        """Uncached prompt tokens that ``key`` has before it."""
        account = self._accounts.get(key)
        return account.prefill if account else 0

    def work(self, key: Key) -> Work:
        """What ``key`` has before it."""
        account = self._accounts.get(key)
        return Work(account.prefill, account.blocks) if account else Work(0, 0.0)

    def mean_blocks(self) -> float:
        """KV blocks of a typical open request."""
        requests = sum(len(account.leases) for account in self._accounts.values())
        return sum(account.blocks for account in self._accounts.values()) / requests if requests else 1.0

    def measure(self) -> None:
        """Look at the meters anew: done now and then, not with every request."""
        meters = self._meters.values()
        prefill = usual((meter.prefill for meter in meters), PREFILL_GUESS)
        decode = usual((meter.decode for meter in meters), DECODE_GUESS)
        steps = usual((meter.steps for meter in meters), STEPS_GUESS)
        self._fleet = Pace(prefill, decode)
        self._paces = {
            pod: Pace(
                prefill * relative(meter.prefill.per_second(prefill), prefill),
                decode * relative(meter.steps.per_second(steps), steps),
            )
            for pod, meter in self._meters.items()
        }

    def pace(self, pod: str) -> Pace:
        """How fast ``pod`` is; what it has not shown yet is taken from the fleet."""
        return self._paces.get(pod, self._fleet)

    def leases(self) -> list[Lease]:
        """Every open lease."""
        return [lease for account in self._accounts.values() for lease in account.leases]

    def by_label(self) -> dict[str, tuple[int, int]]:
        """Requests in flight and outstanding tokens of each group, all epochs together."""
        sums: dict[str, tuple[int, int]] = {}
        for account in self._accounts.values():
            in_flight, outstanding = sums.get(account.label, (0, 0))
            sums[account.label] = in_flight + len(account.leases), outstanding + account.outstanding
        return sums

    def forget_idle(self, but: set[Key]) -> None:
        """Drop the accounts without open requests, except the current ones, and the speed of pods that are gone."""
        for key in [key for key, account in self._accounts.items() if not account.leases and key not in but]:
            del self._accounts[key]
        known = {key.pod for key in self._accounts} | {key.pod for key in but}
        for pod in self._meters.keys() - known:
            del self._meters[pod]

    def _meter(self, pod: str) -> Meter:
        meter = self._meters.get(pod)
        if meter is None:
            meter = self._meters[pod] = Meter()
        return meter


def _nobody_listens(reason: str) -> None:
    """An attempt that has not begun, or has ended, needs no telling."""
