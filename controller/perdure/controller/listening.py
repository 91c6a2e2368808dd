"""How the daemon may be reached: `listen` of config.yaml, less its host and port.

```yaml
listen:
  host: 10.0.0.5
  tls: auto                     # a certificate of its own, made once and kept in PERDURE_HOME/tls; clients pin it
  # tls: {cert: /etc/perdure/cert.pem, key: /etc/perdure/key.pem, pin: true}
  names: [perdure.example.com] # DNS names by which it is called, besides IP addresses and localhost
  plain_http_behind_proxy: true # instead of `tls`: something in front of it speaks TLS
```
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LISTEN_FIELDS = ("tls", "names", "plain_http_behind_proxy")
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")


class ListeningError(Exception):
    """`field` of `listen` can not be used. The text says why and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Certificate:
    """PEM files. `made`: by the daemon itself, on first use. `pin`: nodes trust this one alone, and no authority."""

    cert: Path
    key: Path
    made: bool = False
    pin: bool = True


@dataclass(frozen=True)
class Listening:
    """`certificate` None: plain HTTP, which is for loopback, or for behind a proxy that speaks TLS."""

    certificate: Certificate | None = None
    names: tuple[str, ...] = ()
    behind_proxy: bool = False


def read_listening(listen: Mapping[str, Any], *, host: str, home: Path) -> Listening:
    """Raises ListeningError; also where anybody on the way could read what is said."""
    behind_proxy = listen.get("plain_http_behind_proxy", False)
    if not isinstance(behind_proxy, bool):
        raise ListeningError("plain_http_behind_proxy", f"expected true or false, found {behind_proxy!r}")
    found = Listening(_certificate(listen.get("tls"), home), _names(listen.get("names")), behind_proxy)
    if found.certificate is None and not behind_proxy and not is_loopback(host):
        raise ListeningError(
            "host",
            f"{host} is not this computer alone, and tokens and secrets would go over the network as plain text; add "
            "`tls: auto`, or `plain_http_behind_proxy: true` where something in front of it speaks TLS",
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether only this computer can call `host`. A name is looked up; one that is not known is not loopback."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def _certificate(value: object, home: Path) -> Certificate | None:
    if value is None:
        return None
    if value == "auto":
        return Certificate(home / "tls" / "cert.pem", home / "tls" / "key.pem", made=True)
    if not isinstance(value, dict) or not {"cert", "key"} <= value.keys() <= {"cert", "key", "pin"}:
        raise ListeningError("tls", f"expected auto, or a mapping with cert, key and perhaps pin, found {value!r}")
    pin = value.get("pin", True)
    if not isinstance(pin, bool):
        raise ListeningError("tls", f"pin: expected true or false, found {pin!r}")
    cert, key = (home / Path(str(value[name])).expanduser() for name in ("cert", "key"))
    for path in (cert, key):
        if not path.is_file():
            raise ListeningError("tls", f"there is no file {path}: give the path of a PEM file")
    return Certificate(cert, key, pin=pin)


def _names(value: object) -> tuple[str, ...]:
    names = [] if value is None else value
    if not isinstance(names, list):
        raise ListeningError("names", f"expected a list of DNS names, found {value!r}")
    for name in names:
        if not (isinstance(name, str) and _NAME.fullmatch(name.lower())):
            raise ListeningError("names", f"{name!r} is no DNS name")
    return tuple(name.lower() for name in names)
