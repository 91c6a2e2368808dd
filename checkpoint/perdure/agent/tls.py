"""TLS as the agent speaks it: to whoever an authority vouches for, or to the owner of one pinned certificate."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import socket
import ssl
from typing import Any, Optional


class WrongCertificate(OSError):
    """The peer shows another certificate than the pinned one. Nothing was sent to it."""


def read_fingerprint(text: str) -> str:
    """A certificate's SHA-256 as 64 lower-case digits. Raises ValueError."""
    digits = text.strip().lower().replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError(f"PERDURE_FINGERPRINT is {text!r}: give the SHA-256 of a certificate, 64 hexadecimal digits")
    return digits


def secured(sock: socket.socket, host: str, fingerprint: Optional[str]) -> ssl.SSLSocket:  # noqa: UP045 (Python 3.9)
    """TLS over a connected socket, which is closed on an error. Raises OSError; WrongCertificate is one."""
    context = ssl.create_default_context()
    if fingerprint is not None:  # the one certificate itself is looked at: no authority, name or date matters
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        wrapped = context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    shown = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
    if fingerprint is not None and not hmac.compare_digest(shown, fingerprint):
        wrapped.close()
        raise WrongCertificate(f"{host} shows another certificate than the controller's: sha256:{shown}")
    return wrapped


class Connection(http.client.HTTPConnection):
    """HTTP over `secured`."""

    default_port = http.client.HTTPS_PORT

    def __init__(self, host: str, *, fingerprint: Optional[str], **options: Any) -> None:  # noqa: UP045
        super().__init__(host, **options)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        self.sock = secured(self.sock, self.host, self._fingerprint)
