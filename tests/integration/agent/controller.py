"""A controller that implements docs/reference/agent-protocol.md, with faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import Deadline, scaled

Value = TypeVar("Value")

now = SystemClock().now
TOKEN = "t0ken-of-one-attempt"


class Controller:
    """Records what a node sends. `wrong` lists breaches of the protocol."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {
            "version": 1, "job_id": 7, "task_index": 0, "generation": 2, "rank": 0, "num_nodes": 1,
            "setup": None, "run": None, "env": {}, "secret_names": [], "gpus_per_node": 0, "workdir": None,
            "uploads": [], "mounts": [], "artifacts": {}, "notice": None, "drain_s": 10.0, "power_off_after_s": 600.0,
        }  # fmt: skip
        self.files: dict[str, bytes] = {}
        self.directive: dict[str, Any] = {"target": "wait", "node_ips": [], "deadline": None, "reason": ""}
        self.heartbeat_interval_s = 1.0
        self.acks_logs = True
        self.clock_is_ahead_s = 0.0
        self.is_unknown_token = False
        self.log = bytearray()
        self.log_arrivals: list[tuple[float, int]] = []
        self.hellos: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.readiness: list[dict[str, Any]] = []
        self.heartbeats = 0
        self.usage: list[dict[str, Any]] = []
        self.acked_checkpoint = 0
        self.wrong: list[str] = []
        self._changed = threading.Condition()
        self._connections: set[ServerConnection] = set()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = serve(
            self._serve, "127.0.0.1", self._port, process_request=self._answer, compression=None, max_size=1 << 20
        )
        self._port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop as in a crash; `start` serves at the same address again."""
        assert self._server is not None
        self._server.shutdown()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Cut every connection, also in mid-frame."""
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.socket.close() if connection.socket.fileno() < 0 else connection.socket.shutdown(2)

    def direct(self, target: str, **fields: Any) -> None:
        self.directive = {**self.directive, "target": target, "node_ips": ["10.0.0.1"], **fields}
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            self._send(connection, {"type": "directive", "directive": self.directive, "now": self.now()})

    def revise(self, **spec: Any) -> None:
        """Have the node run the next revision of its spec, with these fields."""
        self.spec = {**self.spec, **spec, "revision": self.spec.get("revision", 0) + 1}
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            self._send(connection, {"type": "revise", "revision": self.spec["revision"]})

    def now(self) -> float:
        """On this controller's own clock."""
        return now() + self.clock_is_ahead_s

    def until(self, is_true: Callable[[], Value | None], timeout_s: float = 20.0) -> Value:
        """Wait until a received message makes `is_true` true, and return its value."""
        deadline = Deadline(timeout_s)
        with self._changed:
            while not (value := is_true()):
                self._changed.wait(min(deadline.remaining_s, 1.0))
                if deadline.has_passed:
                    raise AssertionError(
                        f"not within {deadline}; last reports: {self.reports[-3:]}, log: {self.log[-500:]!r}"
                    )
            return value

    def until_phase(self, phase: str, timeout_s: float = 20.0) -> dict[str, Any]:
        return self.until(lambda: next((r for r in self.reports if r["phase"] == phase), None), timeout_s)

    def until_log(self, needle: bytes, timeout_s: float = 20.0) -> None:
        self.until(lambda: needle in self.log, timeout_s)

    def phases(self) -> list[str]:
        return [report["phase"] for report in self.reports]

    def ack_logs(self) -> None:
        """Acknowledge the withheld logs, and everything from now on."""
        with self._changed:
            self.acks_logs = True
            connections = list(self._connections)
        for connection in connections:
            self._send(connection, {"type": "log_ack", "offset": len(self.log)})

    def ack_checkpoint(self, seq: int) -> None:
        with self._changed:
            self.acked_checkpoint = seq
            connections = list(self._connections)
        for connection in connections:
            self._send(connection, {"type": "checkpoint_ack", "seq": seq})

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}" or request.headers.get("Perdure-Rank") != "0":
            self.wrong.append(f"wrong headers for {request.path}")
        if self.is_unknown_token:
            return _response(HTTPStatus.UNAUTHORIZED, b"{}")
        if request.path == "/agent/v1/channel":
            return None
        if request.path == "/agent/v1/spec":
            return _response(HTTPStatus.OK, json.dumps(self.spec).encode())
        body = self.files.get(request.path.rsplit("/", 1)[1])
        return _response(HTTPStatus.OK, body) if body is not None else _response(HTTPStatus.NOT_FOUND, b"")

    def _serve(self, connection: ServerConnection) -> None:
        try:
            hello = json.loads(connection.recv(timeout=scaled(10)))
            if hello["type"] != "hello":
                self.wrong.append("the first frame was no hello")
            with self._changed:
                self._connections = {connection}  # messages of an older one are ignored
                self.hellos.append(hello)
                self.reports.append(hello["report"])
                log_offset = len(self.log)
                self._changed.notify_all()
            welcome = {"type": "welcome", "log_offset": log_offset, "checkpoint_seq": self.acked_checkpoint}
            self._send(
                connection,
                {
                    **welcome,
                    "heartbeat_interval_s": self.heartbeat_interval_s,
                    "directive": self.directive,
                    "now": self.now(),
                },
            )
            for message in connection:
                self._receive(connection, message)
        except (ConnectionClosed, TimeoutError, OSError):
            pass
        finally:
            with self._changed:
                self._connections.discard(connection)

    def _receive(self, connection: ServerConnection, message: str | bytes) -> None:
        with self._changed:
            if connection not in self._connections:
                return
            if isinstance(message, bytes):
                self._receive_log(connection, message)
            else:
                self._receive_message(json.loads(message))
            self._changed.notify_all()

    def _receive_log(self, connection: ServerConnection, frame: bytes) -> None:
        header, _, data = frame.partition(b"\n")
        if len(frame) > 256 * 1024:
            self.wrong.append(f"a frame of {len(frame)} bytes")
        if json.loads(header)["offset"] != len(self.log):
            self.wrong.append(f"log bytes from {json.loads(header)['offset']} when {len(self.log)} were kept")
            return
        self.log += data
        self.log_arrivals.append((now(), len(self.log)))
        if self.acks_logs:
            self._send(connection, {"type": "log_ack", "offset": len(self.log)})

    def _receive_message(self, message: dict[str, Any]) -> None:
        kind = message.pop("type")
        match kind:
            case "report":
                self.reports.append(message)
            case "notice":
                self.notices.append(message)
            case "checkpoint":
                self.checkpoints.append(message)
            case "readiness":
                self.readiness.append(message)
            case "usage":
                self.usage.append(message)
            case "heartbeat":
                self.heartbeats += 1
            case _:
                self.wrong.append(f"unknown message {kind}")

    def _send(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        with suppress(ConnectionClosed, OSError):
            connection.send(json.dumps(message))


def _response(status: HTTPStatus, body: bytes) -> Response:
    return Response(
        status.value, status.phrase, Headers({"Content-Length": str(len(body)), "Connection": "close"}), body
    )
