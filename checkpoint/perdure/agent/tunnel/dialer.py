"""Opens a connection of its own for every stream that the controller requests (docs/adr/0024).

The channel carries only the request, so a download never delays a heartbeat.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from perdure.agent.link.client import ControllerClient, ControllerRejected, TokenRevoked, Unreachable
from perdure.agent.link.stream_copy import parse_control
from perdure.agent.link.websocket import Disconnected, WebSocket
from perdure.agent.tunnel.command import serve_command
from perdure.agent.tunnel.forward import serve_port, serve_service_port
from perdure.agent.tunnel.session import Session, SessionContext, SessionRefused
from perdure.agent.tunnel.sshd import serve_ssh

MAX_SESSIONS = 64
MAX_REPLICA_SESSIONS = 2048  # of a node of a service, which has one for each connection of a caller
OPEN_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.1
SERVICE = "service"
_ID = re.compile("[0-9a-f]{32}")
_KINDS: Mapping[str, Callable[[Session, Mapping[str, Any], SessionContext], None]] = {
    "exec": serve_command,
    "ssh": serve_ssh,
    "port": serve_port,
    SERVICE: serve_service_port,  # a connection of a service's caller
}


class StreamDialer:
    """Serves the streams of this node. To the channel, it is a stream that has no position.

    Removes the folders of sessions that an earlier agent has left: they hold a host key and the job's environment.
    """

    def __init__(
        self,
        client: ControllerClient,
        context: SessionContext,
        *,
        log: Callable[[str], None],
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._max_sessions = max_sessions
        self._client = client
        self._context = context
        self._log = log
        self._lock = threading.Lock()
        self._sessions: dict[str, Session | None] = {}  # by id; None while the connection is being opened
        self._refusals: dict[str, str] = {}  # why a session that is being opened must not begin
        self._used_at = time.monotonic()
        self._of_service: set[str] = set()  # the ids of the open streams that carry requests of a service
        shutil.rmtree(context.directory, ignore_errors=True)

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:
        """Nothing is resumed: streams do not depend on the channel once they are open."""

    def detach(self) -> None:
        """Open streams go on."""

    def handle_message(self, message: dict[str, Any]) -> None:
        """Open the stream that a message of the controller requests."""
        stream_id = message.get("id")
        if message.get("type") != "open_stream" or not isinstance(stream_id, str) or not _ID.fullmatch(stream_id):
            return
        with self._lock:
            if stream_id in self._sessions or len(self._sessions) >= self._max_sessions:
                self._log("a stream was not opened: there are too many")
                return
            self._sessions[stream_id] = None
        threading.Thread(target=self._run, args=(stream_id,), name="stream", daemon=True).start()

    def used_at(self) -> float:
        """When a user last used this machine (monotonic seconds): now, while a session is open."""
        with self._lock:
            times = [session.used_at for session in self._sessions.values() if session is not None]
            self._used_at = max([self._used_at, *times])
            return self._used_at

    def num_service_streams(self) -> int:
        """How many streams that carry requests of a service are open."""
        return len(self._of_service)

    def end_all(self, reason: str) -> None:
        """End the sessions that are open or being opened, because the job ends here. A machine that is kept may get
        later ones."""
        with self._lock:
            self._refusals.update({id: reason for id, session in self._sessions.items() if session is None})
            sessions = [session for session in self._sessions.values() if session is not None]
        for session in sessions:
            session.end(reason)

    def wait_ended(self, timeout_s: float) -> None:
        """Wait until no session is left, so that users get the reason before the agent ends."""
        give_up_at = time.monotonic() + timeout_s
        while self._sessions and time.monotonic() < give_up_at:
            time.sleep(0.02)

    def _run(self, stream_id: str) -> None:
        try:
            ws = self._connect(stream_id)
            if ws is not None:
                self._serve(ws, stream_id)
        except Exception as error:  # noqa: BLE001 - a stream must never end the agent
            self._log(f"a stream failed: {error!r}")
        finally:
            self.used_at()
            with self._lock:
                self._of_service.discard(stream_id)
                del self._sessions[stream_id]
                self._refusals.pop(stream_id, None)

    def _connect(self, stream_id: str) -> WebSocket | None:
        """The connection of a stream. Behind a load balancer, it may take some calls to reach the right controller."""
        give_up_at = time.monotonic() + OPEN_TIMEOUT_S
        while True:
            try:
                return self._client.open_stream(stream_id)
            except TokenRevoked:
                return None
            except (Unreachable, ControllerRejected) as error:
                if time.monotonic() >= give_up_at:
                    self._log(f"a stream cannot be opened: {error}")
                    return None
            time.sleep(RETRY_PAUSE_S)

    def _serve(self, ws: WebSocket, stream_id: str) -> None:
        session = Session(ws)
        try:
            message = ws.receive(OPEN_TIMEOUT_S)
            if not isinstance(message, str):
                return
            request = {**parse_control(message), "id": stream_id}
            with self._lock:
                self._sessions[stream_id] = session
                if request.get("kind") == SERVICE:
                    self._of_service.add(stream_id)
                refusal = self._refusals.get(stream_id)
            if refusal is not None:
                raise SessionRefused(refusal)
            serve = _KINDS.get(str(request.get("kind")))
            if serve is None:
                raise SessionRefused("this machine's agent does not support this kind of session")
            serve(session, request, self._context)
        except SessionRefused as refused:
            session.refuse(refused)
            ws.receive(OPEN_TIMEOUT_S / 2)  # until the controller has closed the stream
        except (Disconnected, json.JSONDecodeError):
            pass
        finally:
            session.close()
