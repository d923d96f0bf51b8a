"""Rate limits by API key, from a JSON file that is read again when it changes.

``{"v": 1, "default": {"requests_per_minute": 60}, "keys": {"<SHA-256 of the key, hex>": {"tokens_per_minute": 9000}}}``
Where `--api-keys` names the keys, these names stand for the hashes. A key that is not listed has the default; ``null``
or a missing figure is no limit. A broken file never replaces a good one.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bireme.names import Admission
from bireme_router.edge.changed import Changed
from bireme_router.errors import NotTaken
from bireme_router.policies.rate_limit import Allowance, Rates
from bireme_router.policies.retry_after import retry_after_s

log = logging.getLogger(__name__)

MOST_KEYS: Final = 100_000


class _Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    default: _Rates = _Rates()
    keys: dict[str, _Rates] = {}


class BadLimits(ValueError):
    """The file can't be right; the message says why."""


def read_limits(content: bytes) -> tuple[Rates, dict[str, Rates]]:
    """The default and the rates of listed keys.

    Raises:
        BadLimits: the content is no limits file, or a limit is below 1.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadLimits(f"no limits file: {error}") from error
    return _sound("default", file.default), {key: _sound(key, rates) for key, rates in file.keys.items()}


def _sound(name: str, given: _Rates) -> Rates:
    for figure in (given.requests_per_minute, given.tokens_per_minute):
        if figure is not None and figure < 1:
            raise BadLimits(f"a limit of {name} is {figure}: the least is 1, null is no limit")
    return Rates(given.requests_per_minute, given.tokens_per_minute)


class KeyLimits:
    """What each key has used lately; without a file nothing is limited."""

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float],
        note: Callable[[str, int, float], None] = lambda _key, _requests, _tokens: None,
    ) -> None:
        """``note`` is told what each key uses here: key, requests, tokens."""
        self._note = note
        self._path = path
        self._clock = clock
        self._file = Changed(path) if path is not None else None
        self._default = Rates()
        self._rates: dict[str, Rates] = {}
        self._used: dict[str, Allowance] = {}

    def admit(self, key: str, tokens: int) -> None:
        """Charge a request of about so many tokens.

        Raises:
            NotTaken: the key is over its rate; nothing is charged.
        """
        now = self._clock()
        self._look()
        rates = self._rates.get(key, self._default)
        if rates == Rates():
            self._note(key, 1, tokens)
            return
        used = self._used.get(key, Allowance(at=now))
        if (wait_s := used.wait_s(rates, tokens, now)) > 0.0:
            raise NotTaken(
                Admission.QUEUE_FULL,
                f"the API key is over its rate of {_said(rates)}: ask again later",
                retry_after_s([wait_s]),
                code="rate_limit_exceeded",
            )
        self._note(key, 1, tokens)
        self._used[key] = used.used(rates, tokens, now)
        if len(self._used) > MOST_KEYS:
            del self._used[next(iter(self._used))]

    def settle(self, key: str, tokens: int) -> None:
        """The request took so many tokens more (or fewer) than was charged."""
        self._note(key, 0, tokens)
        used = self._used.get(key)
        if used is not None:
            self._used[key] = used.settled(tokens)

    def used_elsewhere(self, key: str, requests: int, tokens: float) -> None:
        """Another router let so many requests of this key in, or settled what it had charged."""
        rates = self._rates.get(key, self._default)
        if rates == Rates():
            return
        used = self._used.get(key, Allowance(at=self._clock()))
        self._used[key] = used.used(rates, tokens, self._clock(), requests)

    def _look(self) -> None:
        if self._path is None or self._file is None or not self._file.is_due():
            return
        try:
            if self._file.look():
                self._default, self._rates = read_limits(self._path.read_bytes())
        except (OSError, BadLimits) as error:
            log.warning("rate limits stay as they were, %s can't be read: %s", self._path, error)


def _said(rates: Rates) -> str:
    figures = ((rates.requests_per_minute, "requests"), (rates.tokens_per_minute, "tokens"))
    return " and ".join(f"{figure} {unit}" for figure, unit in figures if figure is not None) + " per minute"
