"""What a dockerd leaves in a machine's network when it ends: its bridge, its chains, a policy. It is taken away again.

Only what was not there before goes, and of that only what is Docker's: others may have changed rules meanwhile.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.commands import run, works

_BRIDGE: Final = "docker0"
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_DOCKERS: Final = re.compile(r"docker", re.IGNORECASE)
_POLICY: Final = "-P FORWARD "
Rules = Mapping[str, Sequence[str]]
"""By table, as `iptables -S` writes them."""


def rules() -> dict[str, list[str]]:
    """Return the rules that there are now."""
    return {table: run("iptables", "-t", table, "-S").splitlines() for table in ("filter", "nat")}


def forwards() -> bool:
    """Whether the machine forwards packets."""
    return _FORWARDING.read_text().strip() == "1"


def take_away(before: Rules, *, forwarded: bool) -> None:
    """Give the network back as it was, when the dockerd has ended."""
    works("ip", "link", "delete", _BRIDGE)
    for words in undone(before, rules()):
        run("iptables", *words)
    if not forwarded:
        _FORWARDING.write_text("0")


def undone(before: Rules, now: Rules) -> list[list[str]]:
    """Return the arguments of `iptables` that lead back, in their order: rules, then chains, then the policy."""
    back: list[list[str]] = []
    for table, lines in now.items():
        new = [line for line in lines if line not in before[table] and _DOCKERS.search(line)]
        back += [["-t", table, "-D", *shlex.split(line)[1:]] for line in new if line.startswith("-A")]
        back += [["-t", table, "-X", *shlex.split(line)[1:]] for line in new if line.startswith("-N")]
    policies = [line for line in before["filter"] if line.startswith(_POLICY) and line not in now["filter"]]
    return back + [shlex.split(line) for line in policies]
