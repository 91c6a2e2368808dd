"""How the other controllers of a database reach this one."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import URL

from perdure.controller.runtime.security.tls import Tls

_POSTGRES_PORT = 5432


@dataclass(frozen=True)
class PeerAddress:
    """A URL, and the certificate (PEM) that is shown there; None for plain HTTP."""

    url: str
    certificate: str | None = None


def peer_address(host: str, port: int, tls: Tls | None, database: URL) -> PeerAddress:
    """The address of a controller that listens at `host` and `port`.

    If it listens at all addresses, this is the one from which its computer reaches the database.
    """
    if _is_any(host):
        host = _own_address(database.host or "", database.port or _POSTGRES_PORT)
    shown = f"[{host}]" if ":" in host else host
    if tls is None:
        return PeerAddress(f"http://{shown}:{port}")
    return PeerAddress(f"https://{shown}:{port}", tls.certificate)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _own_address(host: str, port: int) -> str:
    """This computer's address on the way to `host`; nothing is sent. The loopback, where that is this computer."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"  # such as for a socket in the file system
