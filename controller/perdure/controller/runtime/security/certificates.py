"""Generates the daemon's own certificate, for `listen.tls: auto`."""

from __future__ import annotations

import ipaddress
import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perdure.controller.runtime.clock import Clock

# Clients pin the certificate, and a new one would lock out every running node, so it is never renewed.
_LIFETIME = timedelta(days=365 * 20)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Perdure controller")])


def generate_self_signed(cert: Path, key: Path, *, names: tuple[str, ...], clock: Clock) -> None:
    """Write a key and then a self-signed certificate for `names`. Both files are readable only by their owner."""
    key_pem, cert_pem = self_signed((*names, "localhost", "127.0.0.1"), clock.now())
    cert.parent.mkdir(mode=0o700, exist_ok=True)
    _write(key, key_pem)
    _write(cert, cert_pem)


def self_signed(names: tuple[str, ...], at: float) -> tuple[bytes, bytes]:
    """A key and a self-signed certificate for `names`, in PEM. `at`: the time now (epoch s)."""
    private_key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.fromtimestamp(at, UTC)
    all_names = dict.fromkeys(names)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(private_key.public_key())
        .serial_number(uuid.uuid4().int)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in all_names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private_key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return private_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), certificate.public_bytes(pem)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
