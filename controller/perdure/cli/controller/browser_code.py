"""Receives a code from a browser: on a port of this computer, or pasted by the user."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from perdure.cli.controller.dashboard import open_link
from perdure.cli.errors import Failure

WAIT_S = 600.0
_CODE = re.compile(r"[\w-]{16,64}")
_DONE = (
    b"<!doctype html><meta charset=utf-8><title>Perdure</title>"
    b"<link rel=icon href='data:,'>"
    b"<p>The command line is signed in. You can close this page.</p>"
)


class BrowserCode:
    """A context manager. `link`: what the browser opens; it holds the challenge, and not the secret."""

    def __init__(self, url: str) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._path = f"/{secrets.token_urlsafe(16)}"
        self._codes: SimpleQueue[str] = SimpleQueue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        challenge = hashlib.sha256(self.secret.encode()).hexdigest()
        host = re.sub("[^A-Za-z0-9.-]", "", socket.gethostname())[:40] or "this computer"
        self.link = f"{url}/login#{challenge}/{self._server.server_port}{self._path}/{host}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def open(self) -> bool:
        """Open the link. False if no browser could be started."""
        return open_link(self.link)

    def wait(self) -> str:
        """The code. Raises Failure if none comes for ten minutes, or stdin ends where nobody can be asked."""
        if sys.stdin is not None and sys.stdin.isatty():
            print("Or paste the code that the page shows: ", end="", file=sys.stderr, flush=True)
            threading.Thread(target=self._read_pasted, daemon=True).start()
        try:
            code = self._codes.get(timeout=WAIT_S)
        except Empty:
            raise Failure("nobody has allowed the command line in the browser\n  run `perdure login` again") from None
        print(file=sys.stderr)
        return code

    def _read_pasted(self) -> None:
        for line in sys.stdin:
            if _CODE.fullmatch(line.strip()):
                self._codes.put(line.strip())
                return
            print("That is no code. Paste the code that the page shows: ", end="", file=sys.stderr, flush=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        path, codes = self._path, self._codes

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                code = parse_qs(parts.query).get("code", [""])[0]
                is_ours = secrets.compare_digest(parts.path, path) and _CODE.fullmatch(code) is not None
                self.send_response(200 if is_ours else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(_DONE if is_ours else b"")
                if is_ours:
                    codes.put(code)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
