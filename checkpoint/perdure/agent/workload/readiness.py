"""Probes the program of a service's replica on the loopback of this node, and reports whether it is ready.

A probe is an HTTP request; ready is the answer 200. Every change is reported, and the newest report is sent again on
each new connection, so that a controller which was restarted knows it at once.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.agent.link.websocket import Disconnected, WebSocket

UNREADY_INTERVAL_S = 1.0
_POLL_S = 0.05
_MAX_BODY_BYTES = 64 * 1024
_MAX_TEXT_CHARS = 200


@dataclass(frozen=True)
class ProbeSettings:
    """`probe` of the node spec. `interval_s`: between two probes of a program that is ready."""

    path: str
    port: int
    timeout_s: float
    interval_s: float
    post_data: Any = None  # JSON, as text or as a value; None: the probe is a GET
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> ProbeSettings:
        """Raises KeyError, ValueError."""
        return cls(
            path=str(raw["path"]),
            port=int(raw["port"]),
            timeout_s=float(raw["timeout_s"]),
            interval_s=float(raw["interval_s"]),
            post_data=raw.get("post_data"),
            headers={str(name): str(value) for name, value in (raw.get("headers") or {}).items()},
        )


@dataclass(frozen=True)
class Readiness:
    """The result of the newest probe. `status`: of the answer, if there was one. `message`: why it is not ready."""

    ready: bool
    status: int | None = None
    message: str = ""


class ReadinessStream:
    """A `Stream` of the channel, with a thread of its own. `is_running`: whether `run` has started and not ended."""

    def __init__(
        self,
        settings: ProbeSettings,
        node_ip: str,
        is_running: Callable[[], bool],
        log: Callable[[str], None],
        *,
        revision: int = 0,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        """`revision`: of the node spec. `on_ready`: called once, when the program is ready for the first time."""
        self._settings = settings
        self._addresses = (node_ip, "127.0.0.1", "::1") if node_ip else ("127.0.0.1", "::1")
        self._is_running = is_running
        self._log = log
        self._revision = revision
        self._on_ready = on_ready
        self._running_since: float | None = None  # monotonic
        self._was_ready = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._ws: WebSocket | None = None
        self._newest: Readiness | None = None
        self._failing_since: float | None = None  # monotonic; of failures in a row
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="readiness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Probe no more. Returns without waiting for a probe that runs."""
        self._stopped.set()

    def report_end(self, why: str) -> None:
        """The program has ended, or could not be started, before it was ready. The machine waits for another one."""
        self._stopped.set()
        self._has_ended = True
        self._take(Readiness(False, None, why[:_MAX_TEXT_CHARS]))

    def attach(self, ws: WebSocket, welcome: dict[str, Any]) -> None:  # noqa: ARG002 - of the protocol
        with self._lock:
            self._ws = ws
            self._send()

    def detach(self) -> None:
        with self._lock:
            self._ws = None

    def handle_message(self, message: dict[str, Any]) -> None:
        """Nothing is acknowledged."""

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            if not self._is_running():
                pause_s = _POLL_S
                continue
            if self._running_since is None:
                self._running_since = time.monotonic()
            result = probe(self._settings, self._addresses)
            if self._stopped.is_set():
                return
            self._take(result)
            interval_s = self._settings.interval_s
            pause_s = interval_s if result.ready else min(interval_s, UNREADY_INTERVAL_S)

    def _take(self, result: Readiness) -> None:
        if result.ready and not self._was_ready:
            self._was_ready = True
            self._on_ready()
        with self._lock:
            if result.ready:
                self._failing_since = None
            elif self._failing_since is None:
                self._failing_since = time.monotonic()
            if result != self._newest:
                self._log(f"readiness: {result}")
                self._newest = result
                self._send()

    def _send(self) -> None:
        """Send the newest result. Call with the lock."""
        if self._ws is None or self._newest is None:
            return
        since = self._failing_since
        frame = {
            "type": "readiness",
            "ready": self._newest.ready,
            "status": self._newest.status,
            "message": self._newest.message,
            "failing_s": None if since is None else time.monotonic() - since,
            "revision": self._revision,
            "running_s": None if self._running_since is None else time.monotonic() - self._running_since,
            "has_ended": self._has_ended,
        }
        try:
            self._ws.send_text(json.dumps(frame))
        except Disconnected:
            self._ws = None


def probe(settings: ProbeSettings, addresses: Sequence[str]) -> Readiness:
    """Ask the program once, at the first of the addresses at which something listens."""
    for address in addresses:
        result = _probe(settings, address)
        if result is not None:
            return result
    return Readiness(False, None, f"nothing listens at port {settings.port}")


def _probe(settings: ProbeSettings, address: str) -> Readiness | None:
    """None if nothing listens there."""
    link = http.client.HTTPConnection(address, settings.port, timeout=settings.timeout_s)
    try:
        link.request(*_request(settings))
        answer = link.getresponse()
        body = answer.read(_MAX_BODY_BYTES)
    except TimeoutError:
        return Readiness(False, None, f"no answer within {settings.timeout_s:g} s from port {settings.port}")
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Readiness(False, None, f"port {settings.port}: {str(error) or type(error).__name__}"[:_MAX_TEXT_CHARS])
    finally:
        link.close()
    if answer.status == http.client.OK:
        return Readiness(True, answer.status)
    text = " ".join(body.decode("utf-8", "replace").split())
    message = f"{settings.path} answers {answer.status} {answer.reason}" + (f": {text}" if text else "")
    return Readiness(False, answer.status, message[:_MAX_TEXT_CHARS])


def _request(settings: ProbeSettings) -> tuple[str, str, bytes | None, dict[str, str]]:
    headers = dict(settings.headers)
    data = settings.post_data
    if data is None:
        return "GET", settings.path, None, headers
    if not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    body = data if isinstance(data, str) else json.dumps(data)
    return "POST", settings.path, body.encode(), headers
