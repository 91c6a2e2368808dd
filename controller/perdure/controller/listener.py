"""The socket that a daemon serves on."""

from __future__ import annotations

import socket

from sqlalchemy import Engine

from perdure.controller.callers import BACKLOG
from perdure.controller.leases import remember, remembered
from perdure.controller.settings import Settings
from perdure.controller.store import jobs as stored_jobs


class CannotStart(Exception):
    """The daemon can not run here. The text says why and what to do."""


def listen(settings: Settings, database: Engine) -> socket.socket:
    """The socket to serve on. A port once chosen is kept: that is where running machines call, unless they call a
    balancer.

    Raises CannotStart when the port is taken and machines may be calling it.
    """
    if settings.advertise:
        return _bound(settings, settings.port, must=settings.port != 0)
    with database.begin() as conn:
        kept = int(remembered(conn, "port", str(settings.port)))
        live = bool(stored_jobs.live_attempts(conn))
    wanted = settings.port or kept
    listening = _bound(settings, wanted, must=bool(settings.port) or live)
    with database.begin() as conn:
        remember(conn, "port", str(listening.getsockname()[1]))
    return listening


def _bound(settings: Settings, port: int, *, must: bool) -> socket.socket:
    """A socket on `port`; on another where that can not be had, unless it `must`."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, port))
    except OSError as error:
        if must:
            listening.close()
            why = "config.yaml says so (listen.port)" if settings.port else "running machines call there"
            problem = f"port {port} of {settings.host} can not be had ({error.strerror}), and {why}"
            raise CannotStart(f"{problem}; free it and start again") from error
        listening.bind((settings.host, 0))
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening
