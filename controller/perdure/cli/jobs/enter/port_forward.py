"""`perdure port-forward`."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import TYPE_CHECKING

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client

_LOOPBACK = "127.0.0.1"
_MAX_CONNECTIONS = 30  # the controller's limit is per node
_PAUSE_S = 1.0  # after a connection that cannot be accepted, such as for lack of descriptors
_PORTS = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")


@click.command(
    epilog="""\b
Examples:
  perdure port-forward job-7 8888           http://127.0.0.1:8888 is the notebook on the machine
  perdure port-forward job-7-worker1 16006:6006
  perdure port-forward dev 8888             of the cluster dev
"""
)
@click.argument("name", shell_complete=suggestions.nodes)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...")
def port_forward(name: str, ports: tuple[str, ...]) -> None:
    """Forward ports of this computer to ports of a machine of a job or a cluster, until Ctrl-C.

    Only this computer can connect to them. On the machine, the program has to listen at 127.0.0.1.
    """
    from perdure.cli.client import connect
    from perdure.cli.jobs.enter.stream import find_node

    pairs = [_parse(text) for text in ports]
    client = connect()
    node = find_node(client, name)
    with contextlib.ExitStack() as stack:
        listeners = [(stack.enter_context(_listen(local)), remote) for local, remote in pairs]
        slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        for listener, remote in listeners:
            local = listener.getsockname()[1]
            click.echo(f"Forwarding {_LOOPBACK}:{local} to port {remote} of {node['name']}. Press Ctrl-C to stop.")
            threading.Thread(
                target=_accept_all, args=(client, node["name"], listener, remote, slots), daemon=True
            ).start()
        threading.Event().wait()


def _parse(text: str) -> tuple[int, int]:
    """(local port, remote port)."""
    match = _PORTS.fullmatch(text)
    pair = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if match is None or max(pair) > 65_535 or pair[1] == 0:
        raise Failure(f"{text!r} is not a port\n  give PORT or LOCAL:PORT, each from 1 to 65535", EXIT_WRONG_INPUT)
    return pair


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        raise Failure(
            f"port {port} of this computer is taken: {error.strerror}\n  give another one: LOCAL:PORT"
        ) from error


def _accept_all(
    client: Client, name: str, listener: socket.socket, remote: int, slots: threading.BoundedSemaphore
) -> None:
    while True:
        slots.acquire()
        try:
            connection, _ = listener.accept()
        except OSError as error:
            slots.release()
            if listener.fileno() < 0:
                return  # the command ends
            warn(f"port {remote}: a connection cannot be accepted: {error.strerror or error}")
            threading.Event().wait(_PAUSE_S)
            continue
        threading.Thread(target=_forward, args=(client, name, connection, remote, slots), daemon=True).start()


def _forward(
    client: Client, name: str, connection: socket.socket, remote: int, slots: threading.BoundedSemaphore
) -> None:
    """Serve one connection."""
    from perdure.agent.link.stream_copy import READ_BYTES, receive_all, send_control
    from perdure.agent.link.websocket import Disconnected
    from perdure.cli.jobs.enter.stream import StreamEnded, open_stream, raise_if_last
    from perdure.sdk.connection.endpoint import ClientError

    with connection:
        try:
            stream = open_stream(client, name, "port", port=remote)
        except ClientError as error:
            warn(f"port {remote}: {error}")
            slots.release()
            return

        def send_input() -> None:
            with contextlib.suppress(Disconnected):
                with contextlib.suppress(OSError):
                    while data := connection.recv(READ_BYTES):
                        stream.ws.send_binary(data)
                send_control(stream.ws, {"type": "eof"})

        sender = threading.Thread(target=send_input, daemon=True)
        sender.start()
        try:
            with contextlib.suppress(StreamEnded, OSError, Disconnected):
                receive_all(stream.ws, connection.sendall, lambda frame: raise_if_last(frame, client.clean))
        except ClientError as error:
            warn(f"port {remote}: {error}")
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            stream.ws.abort()
            sender.join()
            stream.ws.close()
            slots.release()
