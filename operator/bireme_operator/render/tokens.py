"""Group tokens: HMAC(master key, group uid), derived for many groups at once and kept in one Secret per deployment.

A stage mounts the key of its own group only, the router all of them. The Secret is made once and never changed, so the
right to create Secrets is enough; when groups outgrow it a larger one is made, and pods keep what they were made with.
"""

import hashlib
import hmac
from functools import lru_cache
from typing import Final

from bireme_operator.render.owned import Object, Owner, metadata

_SMALLEST: Final = 64


@lru_cache(maxsize=4096)
def group_token(master_key: bytes, group_uid: str) -> str:
    """Return the token of a group, hex."""
    return hmac.new(master_key, group_uid.encode(), hashlib.sha256).hexdigest()


def capacity(highest_index: int) -> int:
    """Return how many groups the Secret serves in which the group ``highest_index`` has its token."""
    size = _SMALLEST
    while size <= highest_index:
        size *= 2
    return size


def secret_name(owner: Owner, size: int) -> str:
    """Return a name that no deployment of the same name but another uid has."""
    identity = hashlib.sha256(f"{owner.uid}/{size}".encode()).hexdigest()[:8]
    return f"{owner.name}-tokens-{identity}"


def render_secret(owner: Owner, size: int, master_key: bytes) -> Object:
    """Return the Secret with the tokens of the groups 0 to ``size`` - 1."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(owner, secret_name(owner, size), "tokens"),
        "type": "Opaque",
        "immutable": True,
        "stringData": {str(index): group_token(master_key, f"{owner.uid}-{index}") for index in range(size)},
    }
