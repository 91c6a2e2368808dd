"""Receives a code from a browser: on a port of this computer, or pasted by the user."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs

from perdure.cli.controller.dashboard import open_link
from perdure.cli.errors import Failure

WAIT_S = 600.0
_CODE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_ANSWER_S = 2.0
"""How long the end of the command waits until the browser has been answered."""
_POLL_S = 0.05  # how soon the port is closed
_PAGE = "<!doctype html><meta charset=utf-8><title>Perdure</title><link rel=icon href='data:,'><p>{}</p>"
_DONE = _PAGE.format("The command line is signed in. You can close this page.")
_FAILED = _PAGE.format("The command line is not signed in. Its terminal says why.")


@dataclass
class _Outcome:
    """What the browser that brought a code receives as its answer, once that is known."""

    is_signed_in: bool = False
    is_known: threading.Event = field(default_factory=threading.Event)
    is_awaited: threading.Event = field(default_factory=threading.Event)
    is_sent: threading.Event = field(default_factory=threading.Event)


class BrowserCode:
    """A context manager. `link`: what the browser opens; it holds the challenge, and not the secret.

    The browser that brings the code learns at the end whether the command line is signed in: see `confirm`.
    """

    def __init__(self, url: str) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._path = f"/{secrets.token_urlsafe(16)}"
        self._codes: SimpleQueue[str | None] = SimpleQueue()  # None: the user has ended the input
        self._outcome = _Outcome()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        challenge = hashlib.sha256(self.secret.encode()).hexdigest()
        host = re.sub("[^A-Za-z0-9.-]", "", socket.gethostname())[:40] or "this computer"
        self.link = f"{url}/login#{challenge}/{self._server.server_port}{self._path}/{host}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._outcome.is_known.set()
        if self._outcome.is_awaited.is_set():
            self._outcome.is_sent.wait(_ANSWER_S)
        self._server.shutdown()
        self._server.server_close()

    def open(self) -> bool:
        """Open the link. False if no browser could be started."""
        return open_link(self.link)

    def wait(self) -> str:
        """The code. Raises Failure if none comes for ten minutes, or the user ends the input of the terminal."""
        if sys.stdin is not None and sys.stdin.isatty():
            print("Or paste the code that the page shows: ", end="", file=sys.stderr, flush=True)
            threading.Thread(target=self._read_pasted, daemon=True).start()
        try:
            code = self._codes.get(timeout=WAIT_S)
        except Empty:
            raise Failure("nobody has allowed the command line in the browser\n  run `perdure login` again") from None
        print(file=sys.stderr)
        if code is None:
            raise Failure("no code was pasted\n  run `perdure login` again")
        return code

    def confirm(self) -> None:
        """The code was good: the browser's page says so."""
        self._outcome.is_signed_in = True

    def _read_pasted(self) -> None:
        for line in sys.stdin:
            if _CODE.fullmatch(line.strip()):
                self._codes.put(line.strip())
                return
            print("That is no code. Paste the code that the page shows: ", end="", file=sys.stderr, flush=True)
        self._codes.put(None)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        path, codes, outcome = self._path, self._codes, self._outcome

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked, _, query = self.path.partition("?")
                code = parse_qs(query).get("code", [""])[0]
                if not secrets.compare_digest(asked.encode(), path.encode()) or not _CODE.fullmatch(code):
                    return self._answer(404, "")
                outcome.is_awaited.set()
                codes.put(code)
                outcome.is_known.wait(WAIT_S)
                try:
                    self._answer(*((200, _DONE) if outcome.is_signed_in else (409, _FAILED)))
                finally:
                    outcome.is_sent.set()

            def _answer(self, status: int, page: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler
