"""The daemon's certificate: made once and kept, or the one that its configuration names."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path

from perdure.controller.clock import Clock
from perdure.controller.listening import Listening
from perdure.controller.settings import SettingsError


@dataclass(frozen=True)
class Tls:
    """PEM files that work together. `fingerprint`: the certificate's SHA-256, lower-case hexadecimal.

    `pin`: what nodes are to trust instead of an authority; None where an authority vouches for it.
    """

    cert: Path
    key: Path
    fingerprint: str
    pin: str | None


def tls_of(listening: Listening, *, host: str, clock: Clock) -> Tls | None:
    """The certificate to serve with, made if it is the daemon's own and not there yet; None for plain HTTP.

    Raises SettingsError when it can not be used.
    """
    chosen = listening.certificate
    if chosen is None:
        return None
    if chosen.made and not chosen.cert.exists():
        from perdure.controller import certificates  # 9 MiB, once

        certificates.make(chosen.cert, chosen.key, names=(host, *listening.names), clock=clock)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chosen.cert, chosen.key, password=_no_password)
        der = ssl.PEM_cert_to_DER_cert(_first_certificate(chosen.cert.read_text()))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(f"listen.tls: {chosen.cert} with {chosen.key} can not be used: {error}") from error
    fingerprint = hashlib.sha256(der).hexdigest()
    return Tls(chosen.cert, chosen.key, fingerprint, fingerprint if chosen.pin else None)


def _first_certificate(pem: str) -> str:
    """The server's own certificate of a file that may hold the authority's after it."""
    start, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    before, found, rest = pem.partition(start)
    if not found:
        raise ValueError(f"no certificate in it, after {len(before)} characters")
    return start + rest.partition(end)[0] + end


def _no_password() -> bytes:
    raise ValueError("the key asks for a password: give one that needs none")
