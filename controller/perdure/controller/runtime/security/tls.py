"""Loads the daemon's certificate: its own, generated once, or the one that its configuration names."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.listen import ListenConfig


@dataclass(frozen=True)
class Tls:
    """A certificate that can be served, with its key."""

    cert: Path  # PEM
    key: Path  # PEM
    fingerprint: str  # SHA-256 of the certificate, lower-case hexadecimal
    pin: str | None  # the fingerprint that nodes trust instead of an authority; None: an authority signed it

    @property
    def certificate(self) -> str:
        """The certificate itself (PEM), without its authority's. Raises OSError."""
        return _first_certificate(self.cert.read_text())


def load_tls(listen: ListenConfig, *, host: str, clock: Clock) -> Tls | None:
    """The certificate of the daemon, generated first if it is the daemon's own; None for plain HTTP.

    Raises SettingsError if it is invalid.
    """
    configured = listen.certificate
    if configured is None:
        return None
    if configured.generated and not configured.cert.exists():
        from perdure.controller.runtime.security import certificates  # imports 9 MiB, needed only once

        certificates.generate_self_signed(configured.cert, configured.key, names=(host, *listen.dns_names), clock=clock)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(configured.cert, configured.key, password=_no_password)
        der = ssl.PEM_cert_to_DER_cert(_first_certificate(configured.cert.read_text()))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(f"listen.tls: {configured.cert} with {configured.key} cannot be used: {error}") from error
    fingerprint = hashlib.sha256(der).hexdigest()
    return Tls(configured.cert, configured.key, fingerprint, fingerprint if configured.pin else None)


def _first_certificate(pem: str) -> str:
    """The server's own certificate from a file that may contain the authority's after it."""
    start, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    before, marker, rest = pem.partition(start)
    if not marker:
        raise ValueError(f"no certificate found in {len(before)} characters")
    return start + rest.partition(end)[0] + end


def _no_password() -> bytes:
    raise ValueError("the key is encrypted: give one without a password")
