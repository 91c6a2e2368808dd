"""Sessions that connect to a port of the node's loopback interface, where notebooks and dashboards listen."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from perdure.agent.link.stream_copy import send_all, write_all
from perdure.agent.tunnel.port_relay import PortRelay
from perdure.agent.tunnel.session import Session, SessionContext, SessionRefused

CONNECT_TIMEOUT_S = 5.0
_RELAY = PortRelay()
_LOOPBACK = ("127.0.0.1", "::1")


def serve_service_port(session: Session, request: Mapping[str, Any], context: SessionContext) -> None:
    """As `serve_port`, to a program that may also listen at the node's own address.

    On the local cloud, machines share a network, so programs that use the same port listen at different addresses.
    """
    link = _connect(int(request["port"]), (context.node_ip, *_LOOPBACK))
    session.at_end(link.close)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setblocking(False)
    session.touch()
    session.accept()
    _RELAY.run(session, link)
    session.receive(lambda _data: None, lambda _message: None)  # until the controller has closed the stream
    session.finish(0)


def serve_port(session: Session, request: Mapping[str, Any], _context: SessionContext) -> None:
    """Copy between the user and the port of `request` until the program there has closed its side.

    Raises SessionRefused, Disconnected.
    """
    _serve(session, _connect(int(request["port"]), _LOOPBACK))


def _serve(session: Session, link: socket.socket) -> None:
    """Copy in both directions. Raises Disconnected."""
    session.at_end(link.close)
    link.setblocking(False)
    session.touch()
    session.accept()

    def on_data(data: bytes) -> None:
        session.touch()
        if not write_all(session.ws, link.fileno(), data):
            _end_input(link)

    def on_control(message: Mapping[str, Any]) -> None:
        if message.get("type") == "eof":
            _end_input(link)

    session.receive(on_data, on_control)
    send_all(session.ws, {link.fileno(): b""}, wake=session.wake, on_data=session.touch)
    session.finish(0)


def _end_input(link: socket.socket) -> None:
    with suppress(OSError):  # the program has closed the connection
        link.shutdown(socket.SHUT_WR)


def _connect(port: int, addresses: Sequence[str]) -> socket.socket:
    """A connection to the first of `addresses` that accepts it. Raises SessionRefused."""
    reason = ""
    for address in filter(None, addresses):
        try:
            return socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            reason = reason or error.strerror or str(error)
    raise SessionRefused(
        f"nothing on this machine can be reached at port {port}: {reason}",
        f"start a program that listens at port {port} of 127.0.0.1",
    )
