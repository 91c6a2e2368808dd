"""Ports for servers that must be told their port before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 10_000


def unused_port() -> int:
    """A TCP port that no server has now, outside of the range from which the kernel gives connections theirs.

    A port of that range may be the source of somebody's connection before the server binds it.
    """
    ephemeral_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = random.SystemRandom().sample(range(_FIRST, max(ephemeral_from, _FIRST + 1_000)), 100)
    for port in ports:
        with socket.socket() as server:
            try:
                server.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise OSError("a hundred ports are in use")
