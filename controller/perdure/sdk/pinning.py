"""Connections to a controller: plain HTTP, TLS that an authority vouches for, or TLS with one pinned certificate."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from perdure.sdk.endpoint import ClientError

if TYPE_CHECKING:
    from perdure.sdk.endpoint import Endpoint

_BLOCK_BYTES = 256 * 1024
_ASK = "compare it with what `perdure controller status` says on its own machine"


class WrongCertificate(ClientError):
    """What answers can not prove to be the controller. Nothing was sent to it."""


def connect(endpoint: Endpoint, *, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to the controller, not opened yet. Proxies are not used. Opening it raises OSError, or
    WrongCertificate before anything is sent."""
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s, blocksize=_BLOCK_BYTES)
    return _Secured(host, port, endpoint.fingerprint, timeout_s=timeout_s)


def read_fingerprint(text: str) -> str:
    """A certificate's SHA-256 as 64 lower-case digits, from any of the ways to write it. Raises ValueError."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError(f"{text!r} is no SHA-256 of a certificate")
    return digits


class _Secured(http.client.HTTPSConnection):
    def __init__(self, host: str, port: int | None, fingerprint: str | None, *, timeout_s: float) -> None:
        self._fingerprint = fingerprint
        context = ssl.create_default_context()
        if fingerprint is not None:  # the one certificate itself is looked at: no authority, name or date matters
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__(host, port, timeout=timeout_s, blocksize=_BLOCK_BYTES, context=context)

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise WrongCertificate(
                f"the certificate at {self.host} is not to be trusted: {error.verify_message}",
                fix="set PERDURE_FINGERPRINT to what `perdure controller status` says on its own machine",
            ) from error
        if self._fingerprint is None:
            return
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, self._fingerprint):
            self.close()
            message = f"what answers at {self.host} shows another certificate: sha256:{shown}"
            raise WrongCertificate(message, where="PERDURE_FINGERPRINT", fix=_ASK)


def is_loopback(url: str) -> bool:
    """Whether `url` leads to this computer itself, as its host is written."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
