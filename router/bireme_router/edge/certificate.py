"""TLS of the router's port: a certificate and its key, loaded again when either file changes.

New handshakes take the new certificate, open connections keep theirs; nothing is closed for a renewal.
"""

import asyncio
import logging
import ssl
from pathlib import Path

from bireme_router.edge.changed import LOOK_S, Changed

log = logging.getLogger(__name__)


class Certificate:
    """A server context that follows its files."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Load both.

        Raises:
            OSError: a file can't be read, or they are no certificate and its key (``ssl.SSLError``).
        """
        self._chain = chain
        self._key = key
        self._watched = (Changed(chain), Changed(key))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._look()
        self.context.load_cert_chain(chain, key)

    async def follow(self) -> None:
        """Load again on every change, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.renew()

    def renew(self) -> None:
        """Load again if a file changed; files that don't fit together leave what is in use."""
        try:
            if self._look():
                _load_apart(self._chain, self._key)
                self.context.load_cert_chain(self._chain, self._key)
                log.info("the certificate %s was loaded again", self._chain)
        except OSError as error:
            log.warning("the certificate stays as it was, %s and its key can't be loaded: %s", self._chain, error)

    def _look(self) -> bool:
        chain, key = (watched.look() for watched in self._watched)
        return chain or key


def _load_apart(chain: Path, key: Path) -> None:
    """Try on a context that nobody uses: a failed load leaves a context with half of a pair."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
