"""Whether a controller answers at an endpoint, who listens there, and whether it accepts the endpoint's token."""

from __future__ import annotations

import contextlib
import http.client
import os
from pathlib import Path
from urllib.parse import urlsplit

from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.transport import connect

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_ROOT = 0


def is_healthy(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether a healthy controller answers at the endpoint. Raises `WrongCertificate`."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/healthz")
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_answering(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether a controller answers at the endpoint, healthy or not. Raises `WrongCertificate`."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/healthz")
            return link.getresponse().status in (200, 503)
    except (OSError, http.client.HTTPException):
        return False


def is_authorized(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether the controller at the endpoint accepts its token."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/api/v1/controller", headers={"Authorization": f"Bearer {endpoint.token}"})
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_trusted(url: str) -> bool:
    """Whether a process of this user or of root, who can both read this user's token, listens at the port of `url`.

    Another user may take the port of a controller that died. False if any other user does, or if the kernel does not
    say who: the listener may be on another computer.
    """
    port = urlsplit(url).port
    owners = {uid for uid, listens_at in _listeners() if listens_at == port}
    return bool(owners) and owners <= {os.getuid(), _ROOT}


def _listeners() -> list[tuple[int, int]]:
    """(user ID, port) of each listening TCP socket of this network namespace."""
    listeners = []
    for table in _TABLES:
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for columns in map(str.split, rows):
            if columns[3] == _LISTEN:
                listeners.append((int(columns[7]), int(columns[1].rpartition(":")[2], 16)))
    return listeners
