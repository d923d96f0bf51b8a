"""T6: every stage listens on its own pod address only, never on what a host name happens to mean."""

import pytest

from bireme.names import Port
from tests.faults.bench import Bench
from tests.faults.parts import address_of, listening

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


async def test_ranks_listen_on_their_own_pods_address_and_on_no_other(bench: Bench) -> None:
    addresses = {stage: address_of(bench.deployment, 0, stage) for stage in range(bench.pipeline)}
    assert len(set(addresses.values())) == bench.pipeline
    for part in (part for part in bench.parts() if part.role == "rank"):
        assert listening(part.pid, addresses[part.stage]) == [Port.DATA + part.rank]
        for other in ("127.0.0.1", "0.0.0.0", *(addresses[s] for s in addresses if s != part.stage)):
            assert not listening(part.pid, other)
