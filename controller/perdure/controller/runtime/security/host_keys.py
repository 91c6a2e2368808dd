"""The ssh host key of a job or a cluster: the same on all its machines at all times, so that clients see one host.

It is derived from the controller's key and stored nowhere. A node gets it when a user enters, over its own connection.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from perdure.controller.runtime.security.keyring import Keyring


@dataclass(frozen=True)
class HostKey:
    """An ed25519 key pair in the formats of OpenSSH."""

    private: str = field(repr=False)  # as in a file that `HostKey` names
    public: str  # as in a line of known_hosts, without the names


def derive_host_key(keyring: Keyring, controller_id: str, host: str) -> HostKey:
    """The host key of a job (`host`: its id) or a cluster. It changes if the controller's key is replaced."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    seed = hmac.new(keyring.derive("ssh host"), f"{controller_id}:{host}".encode(), hashlib.sha256).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return HostKey(private, public)
