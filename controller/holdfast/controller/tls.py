"""The daemon's certificate: made once and kept, or the one that its configuration names."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import ssl
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.controller.clock import Clock
from holdfast.controller.listening import Listening
from holdfast.controller.settings import SettingsError

# Clients pin the certificate itself, so that it need not be renewed: a new one would lock every running node out.
_LASTS = timedelta(days=365 * 20)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Holdfast controller")])


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
        _make(chosen.cert, chosen.key, names=(host, *listening.names), clock=clock)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chosen.cert, chosen.key, password=_no_password)
        der = ssl.PEM_cert_to_DER_cert(_first_certificate(chosen.cert.read_text()))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(f"listen.tls: {chosen.cert} with {chosen.key} can not be used: {error}") from error
    fingerprint = hashlib.sha256(der).hexdigest()
    return Tls(chosen.cert, chosen.key, fingerprint, fingerprint if chosen.pin else None)


def _make(cert: Path, key: Path, *, names: tuple[str, ...], clock: Clock) -> None:
    """Write a self-signed certificate and its key, for their owner alone; the certificate last."""
    secret = ec.generate_private_key(ec.SECP256R1())
    now = datetime.fromtimestamp(clock.now(), UTC)
    called = dict.fromkeys((*names, "localhost", "127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(secret.public_key())
        .serial_number(uuid.uuid4().int)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in called]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    cert.parent.mkdir(mode=0o700, exist_ok=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _write(key, secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    _write(cert, certificate.public_bytes(pem))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    aside = path.with_suffix(".new")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _first_certificate(pem: str) -> str:
    """The server's own certificate of a file that may hold the authority's after it."""
    start, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    before, found, rest = pem.partition(start)
    if not found:
        raise ValueError(f"no certificate in it, after {len(before)} characters")
    return start + rest.partition(end)[0] + end


def _no_password() -> bytes:
    raise ValueError("the key asks for a password: give one that needs none")
