"""The agent's TLS: it trusts the system's certificate authorities, or else one pinned certificate alone."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import socket
import ssl
from typing import Any, Optional


class WrongCertificate(OSError):
    """The server presented another certificate than the pinned one. Nothing was sent to it."""


def parse_fingerprint(text: str) -> str:
    """Normalize a certificate's SHA-256 to 64 lower-case digits. Raises ValueError."""
    digits = text.strip().lower().replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError(f"PERDURE_FINGERPRINT is {text!r}: give the SHA-256 of a certificate, 64 hexadecimal digits")
    return digits


def wrap_socket(sock: socket.socket, host: str, fingerprint: Optional[str]) -> ssl.SSLSocket:  # noqa: UP045 (Python 3.9)
    """Wrap a connected socket in TLS; on an error it is closed. Raises OSError, of which WrongCertificate is one."""
    context = ssl.create_default_context()
    if fingerprint is not None:  # the certificate itself is compared: no authority, name or date matters
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        wrapped = context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    presented = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
    if fingerprint is not None and not hmac.compare_digest(presented, fingerprint):
        wrapped.close()
        raise WrongCertificate(f"{host} presented another certificate than the controller's: sha256:{presented}")
    return wrapped


class TlsConnection(http.client.HTTPConnection):
    """HTTP over a socket of `wrap_socket`."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, *, fingerprint: Optional[str], **options: Any) -> None:  # noqa: UP045
        super().__init__(host, **options)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        self.sock = wrap_socket(self.sock, self.host, self._fingerprint)
