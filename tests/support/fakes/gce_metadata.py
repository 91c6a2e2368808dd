"""A machine's metadata server as on Compute Engine: a client can wait for a change of a value, by ETag.

cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

ROOT = "/computeMetadata/v1/"
MAX_WAIT_S = 60.0
HANGS = "hangs"


class GceMetadata(ThreadingHTTPServer):
    """The metadata server of one machine. `values`: path → text."""

    daemon_threads = True

    def __init__(self, values: Mapping[str, str], address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.values = dict(values)
        #: The faults of the next calls: a status, an invalid body, None for a broken connection, HANGS for no response.
        self.troubles: list[int | str | None] = []
        self.over = threading.Event()
        self.asked: list[str] = []  # the paths of all requests
        self.changed = threading.Condition()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        return self.__enter__()

    def close(self) -> None:
        self.over.set()
        with self.changed:
            self.values.clear()
            self.changed.notify_all()
        self.shutdown()
        self.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}"  # type: ignore[str-bytes-safe]

    def change(self, path: str, value: str) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def handle_error(self, *_: Any) -> None:
        """Machines die in the middle of a call: that is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GceMetadata

    def do_GET(self) -> None:
        server, url = self.server, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        server.asked.append(self.path)
        if server.troubles:
            self._inject(server.troubles.pop(0))
        elif self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403, "Missing Metadata-Flavor:Google header.")
        elif url.path == "/":
            self._answer(200, "computeMetadata/\n")
        elif not url.path.startswith(ROOT):
            self._answer(404, "")
        else:
            self._send(url.path[len(ROOT) :], query)

    def _send(self, path: str, query: Mapping[str, str]) -> None:
        server = self.server
        with server.changed:
            if query.get("wait_for_change") == "true":
                before = query.get("last_etag") or _etag(server.values.get(path, ""))
                wait_s = float(query.get("timeout_sec", MAX_WAIT_S))
                server.changed.wait_for(lambda: _etag(server.values.get(path, "")) != before, wait_s)
            value = server.values.get(path)
        if value is None:
            self._answer(404, "")
        else:
            self._answer(200, value)

    def _inject(self, trouble: int | str | None) -> None:
        if trouble is None:
            self.close_connection = True
            self.connection.close()
        elif isinstance(trouble, int):
            self._answer(trouble, "")
        elif trouble is HANGS:
            self.server.over.wait()
        else:
            self._answer(200, trouble)

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if body.startswith("{") else "application/text")
        self.send_header("ETag", _etag(body))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""


def _etag(body: str) -> str:
    return f"{zlib.crc32(body.encode()):016x}"
