"""Checks the certificate of an endpoint: before it is sent, and again before it is stored."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

KEY, CERT = "keyfile", "certfile"
_CERT_MARK, _KEY_MARK = "-----BEGIN CERTIFICATE-----", "PRIVATE KEY-----"
_MISMATCH = "KEY_VALUES_MISMATCH"


class InvalidCertificate(ValueError):
    """A certificate that cannot be served. `field`: KEY or CERT, whichever is wrong."""

    def __init__(self, field: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.field, self.message, self.fix = field, message, fix


def check(key: str, cert: str) -> None:
    """Raises InvalidCertificate unless `cert` (a chain) can be served with `key`; both are PEM."""
    if _CERT_MARK not in cert:
        raise InvalidCertificate(CERT, "there is no certificate in it", f"give PEM, which has {_CERT_MARK}")
    if _KEY_MARK not in key:
        raise InvalidCertificate(KEY, "there is no private key in it", "give PEM, which has BEGIN PRIVATE KEY")
    with tempfile.TemporaryDirectory(prefix="perdure-tls-") as folder:  # only this user can read it
        key_path, cert_path = Path(folder, "key.pem"), Path(folder, "cert.pem")
        try:
            cert_path.write_text(cert, encoding="utf-8")
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert_path)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidCertificate(CERT, f"its certificate cannot be read: {_why(error)}", "make it again") from error
        try:
            key_path.write_text(key, encoding="utf-8")
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_path, key_path, password=_no_password)
        except _Encrypted as error:
            message = "its key is encrypted"
            raise InvalidCertificate(KEY, message, "give one without a password") from error
        except (ssl.SSLError, ValueError) as error:
            if getattr(error, "reason", None) == _MISMATCH:
                message = "its key does not belong to the certificate of certfile"
                raise InvalidCertificate(KEY, message, "give the two that were made together") from error
            message = f"its key cannot be used with the certificate: {_why(error)}"
            raise InvalidCertificate(KEY, message, "give an unencrypted key in PEM") from error


class _Encrypted(Exception):
    """The key needs a password."""


def _no_password() -> bytes:
    raise _Encrypted


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else "it is not PEM"
