"""POST to a URL that a user chose, without letting it reach this computer or its private network.

The host is resolved once, its addresses are checked, and the connection goes to the address that was checked: a name
that resolves differently a moment later gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from perdure.controller.maintenance.notify.channel_protocol import TIMEOUT_S, Delivered, NotDelivered
from perdure.controller.maintenance.notify.exchange_limit import ExchangeLimit

_MAX_SHOWN = 200
_GONE = 410
_MAX_RETRY_AFTER_S = 86400.0


@dataclass(frozen=True)
class GuardedPost:
    """Posts to one URL. `ca_file`: certificates to trust instead of the system's."""

    url: str
    allow_private: bool = False
    ca_file: Path | None = None

    def send(self, data: bytes, headers: Mapping[str, str]) -> Delivered | NotDelivered:
        """Returns the status as a text. Takes at most `TIMEOUT_S` after the name is resolved, and raises nothing."""
        parts = urlsplit(self.url)
        try:
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            address = self._resolve(host, port)
            tls = self._tls() if parts.scheme == "https" else None
        except (OSError, ValueError) as error:
            return NotDelivered(_text(error))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with ExchangeLimit(TIMEOUT_S) as limit:
            connection = _Pinned(host, port, address, limit, tls)
            try:
                connection.request("POST", target, body=data, headers={"User-Agent": "perdure", **headers})
                response = connection.getresponse()
                if limit.is_over:  # http.client takes the end of the stream for the end of the headers
                    raise TimeoutError
                shown = response.read(_MAX_SHOWN).decode(errors="replace")
            except (OSError, http.client.HTTPException, ValueError) as error:
                return NotDelivered(f"timed out after {limit.limit_s:g} s" if limit.is_over else _text(error))
            finally:
                connection.close()
        return _result(response, shown)

    def _resolve(self, host: str, port: int) -> str:
        """An address of `host` that may be called. Raises OSError."""
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        public = [address for address in addresses if self.allow_private or _is_public(address)]
        if not public:
            raise OSError(
                f"{host} is an address of this computer or of a private network; set notify.allow_private_addresses "
                "to allow it"
            )
        return public[0]

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)


class _Pinned(http.client.HTTPConnection):
    """A connection to `address` under the name `host`."""

    def __init__(self, host: str, port: int, address: str, limit: ExchangeLimit, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self.default_port = 443 if tls else 80  # the Host header leaves out a port that is the default
        self._address, self._limit, self._tls = address, limit, tls

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), timeout=self._limit.left_s)
        self._limit.watch(self.sock)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_global and not parsed.is_multicast


def _result(response: http.client.HTTPResponse, shown: str) -> Delivered | NotDelivered:
    status = response.status
    if 200 <= status < 300:
        return Delivered(str(status))
    if 300 <= status < 400:
        return NotDelivered(f"HTTP {status}: redirects are not followed; configure the final URL")
    text = f"HTTP {status}: {' '.join(shown.split())}" if shown.strip() else f"HTTP {status}"
    return NotDelivered(text, _retry_after_s(response.getheader("Retry-After")), is_final=status == _GONE)


def _retry_after_s(value: str | None) -> float | None:
    """Seconds from a Retry-After header, which has seconds or a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return min(float(value), _MAX_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, at - time.time()), _MAX_RETRY_AFTER_S)  # noqa: TID251 - a date of another computer


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
