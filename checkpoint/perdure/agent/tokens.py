"""Access tokens that end, for this node's rclone: handed out on the loopback, renewed at the controller.

rclone asks for a token in the way of OAuth 2.0 (RFC 6749, section 6) at first and whenever the one that it has ends. A
mount outlives its agent, so the port, and the secret that rclone has to show, are kept: the next agent answers there.

rclone names its cache after all of its settings, so that these had better be the same whenever a bucket is mounted
anew: no token is among them, but one that has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from perdure.agent.state import read_json, write_json

_LONGEST_REQUEST_BYTES = 10_000
_ENDED = {"access_token": "none", "token_type": "Bearer", "expiry": "2000-01-01T00:00:00Z"}
_ASK_AGAIN_S = 60.0  # where the controller could not be asked, and the old token is still good


class NoToken(Exception):
    """A token can not be had now."""


def no_renewal(path: str) -> Mapping[str, Any]:
    """Where there is nobody to ask: tokens are good until they end."""
    raise NoToken(f"nobody renews the token of the mount at {path}")


class Tokens:
    """`renew`: path of a mount → its `rclone` options, new; raises NoToken. `state_dir` outlives the agent. `wall`: in
    epoch seconds.

    A token is renewed after a quarter of its life: for the rest of it nobody needs a controller.
    """

    def __init__(
        self, state_dir: Path, renew: Callable[[str], Mapping[str, Any]], *, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self._state = state_dir / "tokens.json"
        self._renew = renew
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._mounts: dict[str, _Known] = {}  # by the path's digest
        self._secret = ""

    def options(self, path: str, rclone: Mapping[str, Any]) -> dict[str, Any]:
        """rclone's options for the mount at `path`, where `rclone` has an `access_token` that ends. Raises OSError."""
        options = {key: value for key, value in rclone.items() if key not in ("access_token", "expires_at")}
        key = hashlib.sha256(path.encode()).hexdigest()[:12]
        with self._lock:
            port = self._serve()
            self._mounts[key] = _Known.of(path, rclone, self._wall())
        first = {**_ENDED, "refresh_token": self._secret}
        asked_at = {"token_url": f"http://127.0.0.1:{port}/{key}", "client_id": "perdure", "client_secret": "none"}
        return {**options, "token": json.dumps(first), **asked_at}

    def close(self) -> None:
        """Answer no more: no mount is left."""
        with self._lock:
            server, self._server = self._server, None
            with contextlib.suppress(FileNotFoundError):
                self._state.unlink()
        if server is not None:
            server.shutdown()
            server.server_close()

    def _serve(self) -> int:
        if self._server is None:
            self._state.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = read_json(self._state) or {}
            self._secret = kept.get("secret") or secrets.token_urlsafe(24)
            try:
                self._server = _Server(self, kept.get("port", 0))
            except OSError:
                self._server = _Server(self, 0)  # somebody took the port while no agent ran
            write_json(self._state, {"port": self._server.server_address[1], "secret": self._secret})
            threading.Thread(target=self._server.serve_forever, args=(0.2,), name="tokens", daemon=True).start()
        return int(self._server.server_address[1])

    def answer(self, path: str, form: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """The status and body of the answer to a request for a token."""
        if not hmac.compare_digest(form.get("refresh_token", [""])[0], self._secret):
            return 401, {"error": "invalid_client"}
        key = path.strip("/")
        if key not in self._mounts:
            return 404, {"error": "invalid_request"}
        known = self._mounts[key]
        asks_again_at = known.renew_at
        if self._wall() >= known.renew_at:
            try:
                known = self._mounts[key] = _Known.of(known.path, self._renew(known.path), self._wall())
                asks_again_at = known.renew_at
            except NoToken:
                asks_again_at = min(self._wall() + _ASK_AGAIN_S, known.ends_at)
        lasts_s = asks_again_at - self._wall()
        if lasts_s <= 0:
            return 503, {"error": "temporarily_unavailable"}
        # rclone takes whole seconds alone.
        return 200, {"access_token": known.token, "token_type": "Bearer", "expires_in": max(1, int(lasts_s))}


@dataclass(frozen=True)
class _Known:
    """The token of the mount at `path`. Times in epoch seconds."""

    path: str
    token: str
    ends_at: float
    renew_at: float

    @classmethod
    def of(cls, path: str, rclone: Mapping[str, Any], now: float) -> _Known:
        ends_at = float(rclone["expires_at"])
        return cls(path, str(rclone["access_token"]), ends_at, now + max(ends_at - now, 0.0) / 4)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tokens: Tokens, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.tokens = tokens


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        form = parse_qs(self.rfile.read(min(size, _LONGEST_REQUEST_BYTES)).decode(errors="replace"))
        status, told = self.server.tokens.answer(self.path, form)
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The agent's log is about the job."""
