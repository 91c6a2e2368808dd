"""Who listens at a loopback address. Another user may take the port of a controller that died."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_ROOT = 0


def is_trusted(url: str) -> bool:
    """Whether a process of this user or of root, who can both read this user's token, listens at the port of `url`.

    False if any other user does, or if the kernel does not say who: the listener may be on another computer.
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
