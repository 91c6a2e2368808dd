"""A controller that speaks docs/agent-protocol.md and can be unkind, and agents as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from perdure.controller.clock import SystemClock

now = SystemClock().now


SOURCES = Path(__file__).resolve().parents[3] / "checkpoint"
TOKEN = "t0ken-of-one-attempt"


class Controller:
    """Keeps what a node says. `wrong` lists breaches of the protocol."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {
            "version": 1, "job_id": 7, "task_index": 0, "generation": 2, "rank": 0, "num_nodes": 1,
            "setup": None, "run": None, "env": {}, "secret_names": [], "gpus_per_node": 0, "workdir": None,
            "uploads": [], "mounts": [], "artifacts": {}, "notice": None, "drain_s": 10.0, "power_off_after_s": 600.0,
        }  # fmt: skip
        self.files: dict[str, bytes] = {}
        self.directive: dict[str, Any] = {"want": "wait", "node_ips": [], "deadline": None, "reason": ""}
        self.beat_s = 1.0
        self.acks_logs = True
        self.clock_is_ahead_s = 0.0
        self.is_unknown_token = False
        self.log = bytearray()
        self.log_arrivals: list[tuple[float, int]] = []
        self.hellos: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.beats = 0
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
        """Gone, as after a crash; `start` comes back at the same address."""
        assert self._server is not None
        self._server.shutdown()
        self.drop_connections()

    def drop_connections(self) -> None:
        """Cut every connection in the middle of whatever it does."""
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            connection.socket.close() if connection.socket.fileno() < 0 else connection.socket.shutdown(2)

    def direct(self, want: str, **fields: Any) -> None:
        self.directive = {**self.directive, "want": want, "node_ips": ["10.0.0.1"], **fields}
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            self._send(connection, {"type": "directive", "directive": self.directive, "now": self.now()})

    def now(self) -> float:
        """On this controller's own clock."""
        return now() + self.clock_is_ahead_s

    def until(self, is_true: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        """Wait until something said makes `is_true` true, and return its value."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while not (value := is_true()):
                if not self._changed.wait(until - time.monotonic()):
                    raise AssertionError(
                        f"not in {timeout_s} s; last said: {self.reports[-3:]}, log: {self.log[-500:]!r}"
                    )
            return value

    def until_phase(self, phase: str, timeout_s: float = 20.0) -> dict[str, Any]:
        report: dict[str, Any] = self.until(
            lambda: next((r for r in self.reports if r["phase"] == phase), None), timeout_s
        )
        return report

    def until_log(self, needle: bytes, timeout_s: float = 20.0) -> None:
        self.until(lambda: needle in self.log, timeout_s)

    def phases(self) -> list[str]:
        return [report["phase"] for report in self.reports]

    def ack_logs(self) -> None:
        """Ack what was withheld, and everything from now on."""
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
            hello = json.loads(connection.recv(timeout=10))
            if hello["type"] != "hello":
                self.wrong.append("the first frame was no hello")
            with self._changed:
                self._connections = {connection}  # what an older one still holds is not heard any more
                self.hellos.append(hello)
                self.reports.append(hello["report"])
                log_offset = len(self.log)
                self._changed.notify_all()
            welcome = {"type": "welcome", "log_offset": log_offset, "checkpoint_seq": self.acked_checkpoint}
            self._send(connection, {**welcome, "beat_s": self.beat_s, "directive": self.directive, "now": self.now()})
            for message in connection:
                self._hear(connection, message)
        except (ConnectionClosed, TimeoutError, OSError):
            pass
        finally:
            with self._changed:
                self._connections.discard(connection)

    def _hear(self, connection: ServerConnection, message: str | bytes) -> None:
        with self._changed:
            if connection not in self._connections:
                return
            if isinstance(message, bytes):
                self._hear_log(connection, message)
            else:
                self._hear_message(json.loads(message))
            self._changed.notify_all()

    def _hear_log(self, connection: ServerConnection, frame: bytes) -> None:
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

    def _hear_message(self, message: dict[str, Any]) -> None:
        kind = message.pop("type")
        match kind:
            case "report":
                self.reports.append(message)
            case "notice":
                self.notices.append(message)
            case "checkpoint":
                self.checkpoints.append(message)
            case "beat":
                self.beats += 1
            case _:
                self.wrong.append(f"unknown message {kind}")

    def _send(self, connection: ServerConnection, message: dict[str, Any]) -> None:
        with suppress(ConnectionClosed, OSError):
            connection.send(json.dumps(message))


def _response(status: HTTPStatus, body: bytes) -> Response:
    return Response(
        status.value, status.phrase, Headers({"Content-Length": str(len(body)), "Connection": "close"}), body
    )


class Node:
    """A machine: a home, a disk, and an agent that can be killed and started again."""

    def __init__(self, controller: Controller, root: Path) -> None:
        self.controller = controller
        self.home = root / "home"
        self.state_dir = root / "state"
        self.agent_log = root / "agent.log"
        self.env: dict[str, str] = {"PERDURE_POWER_OFF": f"touch {root}/powered-off"}
        self.python = [sys.executable, "-m", "perdure.agent"]
        self.agent: subprocess.Popen[bytes] | None = None
        self.home.mkdir()

    @property
    def run_dir(self) -> Path:
        return self.state_dir / "run"

    def start(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        env |= {
            "PERDURE_ENDPOINT": self.controller.endpoint,
            "PERDURE_TOKEN": TOKEN,
            "PERDURE_RANK": "0",
            "PERDURE_STATE_DIR": str(self.state_dir),
            "HOME": str(self.home),
            "PYTHONPATH": str(SOURCES),
            **self.env,
        }
        with open(self.agent_log, "ab") as log:
            self.agent = subprocess.Popen(self.python, env=env, cwd=self.home, stdout=log, stderr=log)

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def wait_for_agent(self, timeout_s: float = 20.0) -> int:
        assert self.agent is not None
        return self.agent.wait(timeout_s)

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to this node, by its environment."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def until_file(self, path: Path, timeout_s: float = 20.0) -> None:
        """Wait until a file is there: what happens on a node while nobody is connected."""
        until = time.monotonic() + timeout_s
        while not path.exists():
            assert time.monotonic() < until, f"no {path} in {timeout_s} s"
            threading.Event().wait(0.01)

    def workload(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "PERDURE_RUN_DIR" in _environ(p)]

    def destroy(self) -> None:
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if self.agent is not None:
            self.agent.wait()
        for partition in psutil.disk_partitions(all=True):
            if partition.mountpoint.startswith(f"{self.home.parent}/"):
                subprocess.run(["umount", "--lazy", partition.mountpoint], check=False)

    def _is_mine(self, process: psutil.Process) -> bool:
        env = _environ(process)
        mine = (str(self.state_dir), str(self.run_dir))
        return env.get("PERDURE_STATE_DIR") in mine or env.get("PERDURE_RUN_DIR") in mine


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    controller.start()
    yield controller
    controller.stop()
    assert controller.wrong == []


@pytest.fixture
def node(controller: Controller, tmp_path: Path) -> Iterator[Node]:
    node = Node(controller, tmp_path)
    yield node
    node.destroy()
    print(node.agent_log.read_text() if node.agent_log.exists() else "the agent never ran")
