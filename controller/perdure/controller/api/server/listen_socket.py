"""The socket that a daemon serves on."""

from __future__ import annotations

import socket

from sqlalchemy import Engine

from perdure.controller.api.server.protocols import BACKLOG
from perdure.controller.runtime.config.errors import CannotStart
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records import facts
from perdure.controller.store.records import jobs as stored_jobs


def open_listen_socket(settings: Settings, database: Engine) -> socket.socket:
    """Open the socket to serve on. A port that was chosen once is reused, because running nodes connect to it (unless
    they connect to a load balancer).

    Raises CannotStart if the port is taken and nodes may be connecting to it.
    """
    if settings.advertise:
        return _bind(settings, settings.port, must=settings.port != 0)
    with database.begin() as conn:
        stored_port = int(facts.get_or_create(conn, "port", str(settings.port)))
        has_nodes = bool(stored_jobs.live_attempts(conn))
    listening = _bind(settings, settings.port or stored_port, must=bool(settings.port) or has_nodes)
    with database.begin() as conn:
        facts.set(conn, "port", str(listening.getsockname()[1]))
    return listening


def _bind(settings: Settings, port: int, *, must: bool) -> socket.socket:
    """A socket on `port`. If that is taken: on any other port, or CannotStart if it `must` be this one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, port))
    except OSError as error:
        if must:
            listening.close()
            reason = "config.yaml sets it (listen.port)" if settings.port else "running nodes connect to it"
            problem = f"port {port} of {settings.host} is not available ({error.strerror}), and {reason}"
            raise CannotStart(f"{problem}; free it and start again") from error
        listening.bind((settings.host, 0))
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening
