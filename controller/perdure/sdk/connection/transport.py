"""Connections to a controller: plain HTTP, TLS with a certificate authority, or TLS with one pinned certificate."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from perdure.sdk.connection.endpoint import ClientError, NoController

if TYPE_CHECKING:
    from perdure.sdk.connection.endpoint import Endpoint

_BLOCK_BYTES = 256 * 1024
_COMPARE_FIX = "compare it with the output of `perdure controller status` on the controller's machine"


class WrongCertificate(ClientError):
    """The server cannot prove that it is the controller. Nothing was sent to it."""


def connect(endpoint: Endpoint, *, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to the controller that is not opened yet and uses no proxy. Opening it raises OSError, or
    WrongCertificate before anything is sent.

    Raises NoController for an endpoint whose token would cross a network as plain text.
    """
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port
    require_endpoint_private(endpoint)
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s, blocksize=_BLOCK_BYTES)
    return _TlsConnection(host, port, endpoint.fingerprint, timeout_s=timeout_s)


def connection_fix(url: str, error: Exception, environ: Mapping[str, str] = os.environ) -> str:
    """What to do about a controller at `url` that does not answer."""
    if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
        where = urlsplit(url).netloc
        return f"it does not serve TLS: set PERDURE_ENDPOINT=http://{where}, or `listen.tls` in its config.yaml"
    if not environ.get("PERDURE_ENDPOINT"):
        return "run: perdure controller status"
    if isinstance(error, http.client.RemoteDisconnected) and url.startswith("http://"):
        return f"if it serves TLS, set PERDURE_ENDPOINT=https://{urlsplit(url).netloc}"
    return "check PERDURE_ENDPOINT, and on that computer: perdure controller status"


def parse_fingerprint(text: str) -> str:
    """A certificate's SHA-256 as 64 lower-case digits, from any common notation. Raises ValueError."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise ValueError(f"{text!r} is not the SHA-256 of a certificate")
    return digits


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, port: int | None, fingerprint: str | None, *, timeout_s: float) -> None:
        self._fingerprint = fingerprint
        context = ssl.create_default_context()
        if fingerprint is not None:  # the certificate itself is compared: its authority, name and dates do not matter
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__(host, port, timeout=timeout_s, blocksize=_BLOCK_BYTES, context=context)

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise WrongCertificate(
                f"the certificate at {self.host} is not trusted: {error.verify_message}",
                fix="set PERDURE_FINGERPRINT to the fingerprint that `perdure controller status` prints on its machine",
            ) from error
        if self._fingerprint is None:
            return
        actual = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(actual, self._fingerprint):
            self.close()
            message = f"the server at {self.host} has another certificate: sha256:{actual}"
            raise WrongCertificate(message, where="PERDURE_FINGERPRINT", fix=_COMPARE_FIX)


def is_loopback(url: str) -> bool:
    """Whether the host in `url` is this computer, judged by its text alone."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_private(url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises NoController if what is sent to `url` could be read on a network, unless PERDURE_PLAIN_HTTP allows it."""
    if urlsplit(url).scheme == "https" or is_loopback(url) or environ.get("PERDURE_PLAIN_HTTP") == "1":
        return
    raise NoController(
        f"the token and the job's secrets would be sent to {url} as plain text",
        where="PERDURE_ENDPOINT",
        fix="start it with https://, or set PERDURE_PLAIN_HTTP=1 on a network that nobody can listen to (a VPN)",
    )


def require_endpoint_private(endpoint: Endpoint) -> None:
    """Raises NoController if the endpoint's token would cross a network as plain text."""
    # Behind a proxy that ends TLS, the record of the home names one of this computer's own addresses.
    if endpoint.token and not _is_own_address(urlsplit(endpoint.url).hostname or ""):
        require_private(endpoint.url)


def _is_own_address(host: str) -> bool:
    """Whether `host` is an address of this computer: then packets to it do not leave the computer."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
