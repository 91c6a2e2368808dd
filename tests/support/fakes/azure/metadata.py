"""Azure's instance metadata service, as far as an agent uses it: the machine's name, and scheduled events.

learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

EVENTS = "/metadata/scheduledevents"
INSTANCE = "/metadata/instance"
TOKEN = "/metadata/identity/oauth2/token"


class MetadataService(ThreadingHTTPServer):
    """The service of one machine."""

    daemon_threads = True

    def __init__(self, name: str, host: str = "127.0.0.1", token: str | None = None) -> None:
        super().__init__((host, 0), _Handler)
        self.name = name
        self.token = token  # of the machine's identity; None if it has none or several
        self.broken: int | None = None  # the status of every response
        self.raw_events: bytes | None = None  # replaces the document of events
        self.hangs_up = False  # connections are closed after each response
        self.user_data = ""  # in base64
        self.asked: list[str] = []  # the paths of all GET requests
        self.acknowledged: list[str] = []  # the ids of the events that were started by POST
        self._incarnation = 0
        self._events: dict[str, dict[str, Any]] = {}
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def schedule(self, kind: str, machines: list[str], at: float) -> str:
        """Announce an event for a time in epoch seconds, which is reported in whole seconds; return its ID."""
        id = str(uuid.uuid4()).upper()
        self._events[id] = {
            "EventId": id,
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": machines,
            "EventStatus": "Scheduled",
            "NotBefore": formatdate(at, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self._incarnation += 1
        return id

    def begin(self, id: str) -> None:
        """Start the event now. A started event has no `NotBefore`."""
        self._events[id] |= {"EventStatus": "Started", "NotBefore": ""}
        self._incarnation += 1

    def withdraw(self, id: str) -> None:
        del self._events[id]
        self._incarnation += 1

    def document(self) -> bytes:
        if self.raw_events is not None:
            return self.raw_events
        return json.dumps({"DocumentIncarnation": self._incarnation, "Events": list(self._events.values())}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MetadataService

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        url, version = urlsplit(self.path), parse_qs(urlsplit(self.path).query).get("api-version")
        if self.server.broken:
            self._answer(self.server.broken, b"")
        elif self.headers["Metadata"] != "true" or not version:
            self._answer(400, b'{"error": "Bad request. Required metadata header not specified"}')
        elif url.path == EVENTS:
            self._answer(200, self.server.document())
        elif url.path == f"{INSTANCE}/compute/name":
            self._answer(200, self.server.name.encode())
        elif url.path == f"{INSTANCE}/compute/userData" and self.server.user_data:
            self._answer(200, self.server.user_data.encode())
        elif url.path == TOKEN and self.server.token is not None:
            ends_at = str(int(time.time()) + 3600)  # noqa: TID251 - a machine has the real clock
            token = {"access_token": self.server.token, "expires_in": "3600", "expires_on": ends_at}
            resource = parse_qs(url.query)["resource"][0]
            self._answer(200, json.dumps({**token, "resource": resource, "token_type": "Bearer"}).encode())
        elif url.path == TOKEN:
            self._answer(400, b'{"error": "invalid_request", "error_description": "Identity not found"}')
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.acknowledged += [one["EventId"] for one in body["StartRequests"]]
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.hangs_up

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""
