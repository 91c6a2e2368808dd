"""How clients reach the daemon: the `listen` section of config.yaml, with its TLS certificate.

```yaml
listen:
  host: 10.0.0.5
  tls: auto                        # a self-signed certificate, made once and kept in PERDURE_HOME/tls; clients pin it
  # tls: {cert: /etc/perdure/cert.pem, key: /etc/perdure/key.pem, pin: true}
  dns_names: [perdure.example.com] # accepted besides IP addresses and localhost
  trust_proxy_tls: true            # instead of `tls`: a proxy in front of the daemon terminates TLS
  metrics: {token_file: metrics.token}  # a token that reads /metrics and nothing else
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

from perdure.controller.runtime.config.config_key import ConfigKey

DEFAULT_HOST = "127.0.0.1"
_DNS_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*")

LISTEN_KEYS = (
    ConfigKey("listen.host", "text", DEFAULT_HOST, "The address or name on which the daemon listens."),
    ConfigKey(
        "listen.port",
        "whole number",
        "0",
        "The TCP port; 0 chooses a free one at the first start and keeps it.",
    ),
    ConfigKey(
        "listen.advertise",
        "URL",
        "the daemon's own address",
        "The URL at which users and machines reach the controller, such as that of a load balancer.",
    ),
    ConfigKey(
        "listen.tls",
        "auto, or a mapping",
        "none (plain HTTP)",
        "The certificate; `auto` makes a self-signed one in PERDURE_HOME/tls, once, which clients pin.",
    ),
    ConfigKey("listen.tls.cert", "path", "required", "The PEM file of the certificate, relative to PERDURE_HOME."),
    ConfigKey("listen.tls.key", "path", "required", "The PEM file of its private key, relative to PERDURE_HOME."),
    ConfigKey(
        "listen.tls.pin",
        "true or false",
        "true",
        "Whether nodes trust only this certificate; false: they trust certificate authorities, so it may be renewed.",
    ),
    ConfigKey(
        "listen.dns_names",
        "list of text",
        "[]",
        "DNS names by which clients call the daemon, besides `host`, IP addresses and localhost.",
    ),
    ConfigKey(
        "listen.trust_proxy_tls",
        "true or false",
        "false",
        "Allows plain HTTP on a public address because a proxy in front of the daemon terminates TLS.",
    ),
    ConfigKey(
        "listen.metrics.token_file",
        "path",
        "none",
        "A file with a token that reads /metrics and nothing else, relative to PERDURE_HOME. User tokens do, too.",
    ),
    ConfigKey(
        "listen.metrics.open_on_loopback",
        "true or false",
        "false",
        "Whether programs on the controller's own computer may read /metrics without a token.",
    ),
)


class ListenError(Exception):
    """The key `field` of `listen` is invalid. The text says why and what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Certificate:
    """The PEM files of the daemon's certificate."""

    cert: Path
    key: Path
    generated: bool = False  # the daemon makes it on first use
    pin: bool = True  # nodes trust only this certificate, and no authority


@dataclass(frozen=True)
class MetricsAccess:
    """Who may read /metrics, besides users."""

    token_file: Path | None = None  # read at each scrape, so that it can be replaced
    open_on_loopback: bool = False


@dataclass(frozen=True)
class ListenConfig:
    """How clients reach the daemon."""

    certificate: Certificate | None = None  # None: plain HTTP, for loopback or behind a proxy that terminates TLS
    dns_names: tuple[str, ...] = ()
    trust_proxy_tls: bool = False
    metrics: MetricsAccess = MetricsAccess()


def read_listen_config(listen: Mapping[str, Any], *, host: str, home: Path) -> ListenConfig:
    """From the `listen` section. Raises ListenError, also if tokens would cross a network in plain text."""
    trust_proxy_tls = listen.get("trust_proxy_tls", False)
    if not isinstance(trust_proxy_tls, bool):
        raise ListenError("trust_proxy_tls", f"expected true or false, found {trust_proxy_tls!r}")
    metrics = _metrics_access(listen.get("metrics"), home, trust_proxy_tls)
    certificate, names = _certificate(listen.get("tls"), home), _dns_names(listen.get("dns_names"))
    config = ListenConfig(certificate, names, trust_proxy_tls, metrics)
    if config.certificate is None and not trust_proxy_tls and not is_loopback(host):
        raise ListenError(
            "host",
            f"{host} can be reached from other computers, and tokens and secrets would be sent in plain text; add "
            "`tls: auto`, or `trust_proxy_tls: true` if a proxy in front of it terminates TLS",
        )
    return config


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach `host`. A name is resolved; an unknown one is not loopback."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def _certificate(value: object, home: Path) -> Certificate | None:
    if value is None:
        return None
    if value == "auto":
        return Certificate(home / "tls" / "cert.pem", home / "tls" / "key.pem", generated=True)
    if not isinstance(value, dict) or not {"cert", "key"} <= value.keys() <= {"cert", "key", "pin"}:
        raise ListenError("tls", f"expected auto, or a mapping with cert, key and optionally pin, found {value!r}")
    pin = value.get("pin", True)
    if not isinstance(pin, bool):
        raise ListenError("tls", f"pin: expected true or false, found {pin!r}")
    cert, key = (home / Path(str(value[name])).expanduser() for name in ("cert", "key"))
    for path in (cert, key):
        if not path.is_file():
            raise ListenError("tls", f"there is no file {path}: give the path of a PEM file")
    return Certificate(cert, key, pin=pin)


def _metrics_access(value: object, home: Path, trust_proxy_tls: bool) -> MetricsAccess:
    section = {} if value is None else value
    if not isinstance(section, dict):
        raise ListenError("metrics", f"expected a mapping with token_file and open_on_loopback, found {value!r}")
    is_open, name = section.get("open_on_loopback", False), section.get("token_file")
    if not isinstance(is_open, bool):
        raise ListenError("metrics", f"open_on_loopback: expected true or false, found {is_open!r}")
    if name is not None and not (isinstance(name, str) and name):
        raise ListenError("metrics", f"token_file: expected the path of a file, found {name!r}")
    if is_open and trust_proxy_tls:
        raise ListenError(
            "metrics",
            "open_on_loopback: with trust_proxy_tls, a proxy on this computer would open the metrics to everybody; "
            "use token_file",
        )
    return MetricsAccess(home / Path(name).expanduser() if name else None, is_open)


def _dns_names(value: object) -> tuple[str, ...]:
    names = [] if value is None else value
    if not isinstance(names, list):
        raise ListenError("dns_names", f"expected a list of DNS names, found {value!r}")
    for name in names:
        if not (isinstance(name, str) and _DNS_NAME.fullmatch(name.lower())):
            raise ListenError("dns_names", f"{name!r} is not a DNS name")
    return tuple(name.lower() for name in names)
