"""What this router has open on each group: the primary signal of load, free of any polling lag.

Kept by (pod, epoch): when a group re-forms, work of the old epoch no longer weighs on the new one.
"""

from collections.abc import Callable

from bireme_router.policies.cost import Cost
from bireme_router.policies.eligible import Key


class Account:
    """Open requests on one (pod, epoch) and the tokens still expected of them."""

    def __init__(self, key: Key, label: str) -> None:
        self.key = key
        self.label = label
        self.outstanding = 0
        self.leases: set[Lease] = set()


class Lease:
    """One attempt's place on a group, from the decision to send until its end, whatever that is."""

    __slots__ = ("_account", "_closed", "_decode", "_on_release", "_prefill", "abandon", "touched", "where")

    def __init__(self, account: Account, cost: Cost, where: "Whereabouts", on_release: Callable[[], None]) -> None:
        self._account = account
        self._prefill = cost.prefill
        self._decode = cost.decode
        self._on_release = on_release
        self._closed = False
        self.where = where
        self.touched = 0.0
        """When the attempt last brought something, on the loop's clock; kept by the attempt."""
        self.abandon: Callable[[str], None] = _nobody_listens
        """Ends the attempt as broken; set while it runs."""
        account.outstanding += cost.prefill + cost.decode
        account.leases.add(self)

    @property
    def key(self) -> Key:
        """Where the request is."""
        return self._account.key

    def opened(self, prompt_tokens: int) -> None:
        """The group counted the prompt: the guess is replaced."""
        if self._prefill:
            self._account.outstanding += prompt_tokens - self._prefill
            self._prefill = prompt_tokens

    def emitted(self, tokens: int) -> None:
        """Tokens came: the prefill is over, and so much less is to be decoded."""
        decoded = min(tokens, self._decode)
        self._account.outstanding -= self._prefill + decoded
        self._prefill = 0
        self._decode -= decoded

    def release(self) -> None:
        """The attempt is over. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        self._account.outstanding -= self._prefill + self._decode
        self._account.leases.discard(self)
        self._on_release()


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

    def of(self, key: Key, label: str) -> Account:
        """The account of ``key``, opened when it is first asked for."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(key, label)
        return account

    def in_flight(self, key: Key) -> int:
        """Open requests on ``key``."""
        account = self._accounts.get(key)
        return len(account.leases) if account else 0

    def outstanding(self, key: Key) -> int:
        """Tokens still expected of ``key``."""
        account = self._accounts.get(key)
        return account.outstanding if account else 0

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
        """Drop the accounts without open requests, except the current ones."""
        for key in [key for key, account in self._accounts.items() if not account.leases and key not in but]:
            del self._accounts[key]


def _nobody_listens(reason: str) -> None:
    """An attempt that has not begun, or has ended, needs no telling."""
