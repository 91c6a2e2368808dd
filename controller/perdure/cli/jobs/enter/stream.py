"""Opens streams to the machines of jobs: commands, ssh connections, forwarded ports.

The frames are those of docs/reference/agent-protocol.md, "Streams".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal
from urllib.parse import quote

from perdure.agent.link.stream_copy import parse_control
from perdure.agent.link.tls import WrongCertificate as WrongNodeCertificate
from perdure.agent.link.websocket import Disconnected, UpgradeRefused, WebSocket
from perdure.sdk.connection import api_types
from perdure.sdk.connection.client import ApiError, Client, ConnectionLost, user_name
from perdure.sdk.connection.transport import WrongCertificate, require_endpoint_private

OPEN_TIMEOUT_S = 60.0
MISDIRECTED_TIMEOUT_S = 10.0
_MISDIRECTED, _UNAUTHORIZED = 421, 401
_RETRY_PAUSE_S = 0.1
_READER_MAY_WAIT_S = 24 * 3600.0
_DEAD_PEER_S = 90.0

StreamKind = Literal["exec", "ssh", "port"]


@dataclass(frozen=True)
class Stream:
    """An open stream. `name`: of the node; `opened`: the controller's whole answer."""

    ws: WebSocket
    name: str
    opened: Mapping[str, Any]


class StreamEnded(Exception):
    """The last frame of a stream. `exit_code`: of the command, or 0."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


def find_node(client: Client, name: str) -> api_types.NodeAddress:
    """The node that a name such as `job-17-worker1` stands for now. Raises ApiError, ConnectionLost."""
    return client.call(api_types.NodeAddress, "GET", f"/nodes/{quote(name, safe='')}")


def open_stream(client: Client, name: str, kind: StreamKind, **request: Any) -> Stream:
    """Open a stream to the node `name`. Raises ApiError, ConnectionLost.

    `request`: `argv`, `tty`, `term`, `rows`, `columns` of a command; `public_key` of ssh; `port`.
    """
    frame = {"type": "open", "name": name, "kind": kind, "user": user_name(), **request}
    give_up_at = time.monotonic() + MISDIRECTED_TIMEOUT_S
    while True:
        ws = _connect(client)
        try:
            ws.send_text(json.dumps(frame))
            answer = ws.receive(OPEN_TIMEOUT_S)
            if not isinstance(answer, str):
                raise Disconnected("the controller did not answer")
            opened = parse_control(answer)
            raise_if_last(opened, client.clean)
            return Stream(ws, str(opened.get("name", name)), opened)
        except Disconnected as error:
            ws.close()
            raise lost(client, error) from error
        except ApiError as error:
            ws.close()
            if error.status != _MISDIRECTED or time.monotonic() >= give_up_at:
                raise
        except BaseException:
            ws.close()
            raise
        Event().wait(_RETRY_PAUSE_S)  # the next connection may reach the controller that holds the node's


def raise_if_last(frame: Mapping[str, Any], clean: Callable[[Any], Any]) -> None:
    """Raises StreamEnded or ApiError if this control frame is the last one of its stream."""
    if frame.get("type") == "exit":
        raise StreamEnded(int(frame.get("code", 0)))
    if frame.get("type") == "error":
        raise ApiError(
            str(clean(frame.get("message", "the stream has failed"))),
            status=int(frame.get("status", 409)),
            fix=str(clean(frame.get("fix") or "")) or None,
        )


def lost(client: Client, error: Exception) -> ConnectionLost:
    """The error for a stream that broke."""
    return ConnectionLost(
        f"the stream through {client.endpoint.url} has ended: {error}",
        fix="the machine may be gone, or the controller was restarted; try again",
    )


def _connect(client: Client) -> WebSocket:
    """Follows the embedded controller to a new address, and restarts it if it crashed."""
    try:
        return _connect_once(client)
    except ConnectionLost:
        client.controller()
        return _connect_once(client)


def _connect_once(client: Client) -> WebSocket:
    endpoint = client.endpoint
    require_endpoint_private(endpoint)
    try:
        ws = WebSocket.connect(
            endpoint.url + "/api/v1/streams",
            {"Authorization": f"Bearer {endpoint.token}"},
            fingerprint=endpoint.fingerprint,
            send_timeout_s=_READER_MAY_WAIT_S,
        )
        ws.expect_acknowledgements(within_s=_DEAD_PEER_S)
        return ws
    except UpgradeRefused as refused:
        if refused.status == _UNAUTHORIZED:
            raise ApiError("the controller rejects this token", status=_UNAUTHORIZED) from refused
        raise ApiError(
            f"the controller answered {refused.status}: it may be of an older version",
            status=refused.status,
            fix="upgrade it",
        ) from refused
    except WrongNodeCertificate as error:
        raise WrongCertificate(str(error), where="PERDURE_FINGERPRINT") from error
    except (OSError, Disconnected) as error:
        raise lost(client, error) from error
