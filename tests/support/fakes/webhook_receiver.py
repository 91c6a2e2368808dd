"""A real HTTP server that receives webhooks, and answers as a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = int | tuple[int, Mapping[str, str]] | None
"""A status, perhaps with headers; None: no answer until the receiver ends."""


@dataclass(frozen=True)
class Received:
    path: str
    headers: Mapping[str, str]  # names in lower case
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of the message: one, or those of a digest."""
        body = self.body
        return list(body["data"]["events"]) if body["type"] == "digest" else [body]


@dataclass
class WebhookReceiver:
    """`script`: called with each message; its answer is sent. A context manager."""

    script: Callable[[Received], Answer] = lambda _received: 200
    received: list[Received] = field(default_factory=list)

    def __enter__(self) -> Self:
        receiver, self._released = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                message = Received(self.path, headers, raw)
                answer = receiver.script(message)
                receiver.received.append(message)
                if answer is None:
                    receiver._released.wait()
                    return
                status, more = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    @property
    def event_ids(self) -> list[str]:
        """The ids of all events that were accepted with 2xx, in order; repeats included."""
        return [event["id"] for message in list(self.received) for event in message.events]
