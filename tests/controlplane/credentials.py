"""What the parts of a control plane prove themselves with: bearer tokens, one signing key, kubeconfig files.

The API server makes its own serving certificate; clients trust its issuer. All of it lives as long as one test session.
"""

import base64
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_P256_BYTES: Final = 32
# SEC 1: an ECPrivateKey is a version, the secret and the curve's name. Go computes the public half itself.
_KEY_HEAD: Final = bytes.fromhex("3031020101") + bytes([0x04, _P256_BYTES])
_KEY_TAIL: Final = bytes.fromhex("a00a06082a8648ce3d030107")


@dataclass(frozen=True)
class User:
    """An identity that the API server knows, with a token of its own."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class Users:
    """Who talks to the API server: whoever runs the tests, and Kubernetes' own parts with their built-in roles."""

    admin: User = field(default_factory=lambda: User("admin", ("system:masters",)))
    controller_manager: User = field(default_factory=lambda: User("system:kube-controller-manager"))
    scheduler: User = field(default_factory=lambda: User("system:kube-scheduler"))

    def all(self) -> tuple[User, ...]:
        return (self.admin, self.controller_manager, self.scheduler)

    def write_tokens(self, path: Path) -> None:
        """Write the file of `--token-auth-file`."""
        lines = [f'{user.token},{user.name},{user.name},"{",".join(user.groups)}"\n' for user in self.all()]
        path.write_text("".join(lines), encoding="utf-8")


def write_signing_key(path: Path) -> None:
    """Write a fresh P-256 key for service account tokens, as PEM."""
    # A first byte below 0xff keeps the secret under the order of the curve.
    secret = bytes([secrets.randbelow(0xFF)]) + secrets.token_bytes(_P256_BYTES - 1)
    text = base64.encodebytes(_KEY_HEAD + secret + _KEY_TAIL).decode()
    path.write_text(f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n", encoding="ascii")


def extract_issuer(chain: Path, target: Path) -> None:
    """Write the last certificate of the API server's ``chain``: who publishes it to pods insists on issuers alone."""
    begin = "-----BEGIN CERTIFICATE-----"
    target.write_text(begin + chain.read_text(encoding="ascii").rpartition(begin)[2], encoding="ascii")


def write_kubeconfig(path: Path, *, url: str, authority: Path, user: User) -> None:
    """Write a kubeconfig of one user; JSON is YAML too."""
    cluster = {"server": url, "certificate-authority": str(authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user.name}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
