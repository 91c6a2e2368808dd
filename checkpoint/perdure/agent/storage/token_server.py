"""Serves expiring credentials to this node's rclone on the loopback, and renews them at the controller.

rclone requests Google's tokens by OAuth 2.0 (RFC 6749, section 6), and AWS's keys as in a container (the SDK's
container credential provider), at its start and whenever they expire. A mount outlives its agent, so the port, and
the secret that rclone must present, are stored: the next agent serves at the same address.

rclone names its cache after all of its settings, so these must be the same whenever a bucket is mounted again. That is
why the only token among them is one that has expired.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from perdure.agent import clock
from perdure.agent.state_file import read_json, write_json

_MAX_REQUEST_BYTES = 10_000
_EXPIRED_TOKEN = {"access_token": "none", "token_type": "Bearer", "expiry": "2000-01-01T00:00:00Z"}
_SECRETS = ("access_token", "credentials")
_ERRORS = {401: "invalid_client", 404: "invalid_request", 503: "temporarily_unavailable"}
_RENEW_RETRY_S = 60.0  # after a failed renewal, while the old token is still valid


class TokenUnavailable(Exception):
    """No token is available now."""


def no_renewal(path: str) -> Mapping[str, Any]:
    """For mounts without a controller: a token is never renewed."""
    raise TokenUnavailable(f"the token of the mount at {path} cannot be renewed")


class TokenServer:
    """The OAuth 2.0 token endpoint of this node. It serves once a mount with an expiring token exists.

    `renew`: path of a mount → its renewed `rclone` options; raises TokenUnavailable. `state_dir` outlives the agent.
    A token is renewed after a quarter of its life; for the rest of it no controller is needed. `wall_clock` (epoch
    seconds) is used only to tell the remaining life of a token that arrives; from then on `since_boot` (seconds, with
    the time asleep) counts, so that a wall clock that is set neither ends nor prolongs a token.
    """

    def __init__(
        self,
        state_dir: Path,
        renew: Callable[[str], Mapping[str, Any]],
        *,
        wall_clock: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = clock.now,
    ) -> None:
        self._wall_clock, self._since_boot = wall_clock, since_boot
        self._state = state_dir / "tokens.json"
        self._renew = renew
        self._lock = threading.Lock()
        self._server: _HttpServer | None = None
        self._mounts: dict[str, _MountToken] = {}  # by the path's digest
        self._secret = ""

    def options(self, path: str, rclone: Mapping[str, Any]) -> dict[str, Any]:
        """rclone's options for the mount at `path`; `rclone` has an `access_token` or `credentials` that expire.

        AWS's keys need variables of its environment, too, under `environ`. Raises OSError.
        """
        options = {key: value for key, value in rclone.items() if key not in (*_SECRETS, "expires_at")}
        key = hashlib.sha256(path.encode()).hexdigest()[:12]
        with self._lock:
            port = self._serve()
            self._mounts[key] = self._received(path, rclone)
        if "credentials" in rclone:
            return {**options, "environ": self._container_environ(port, key)}
        first = {**_EXPIRED_TOKEN, "refresh_token": self._secret}
        endpoint = {"token_url": f"http://127.0.0.1:{port}/{key}", "client_id": "perdure", "client_secret": "none"}
        return {**options, "token": json.dumps(first), **endpoint}

    def _container_environ(self, port: int, key: str) -> dict[str, str]:
        """What makes an SDK of AWS ask this server for keys, and nothing else on this machine."""
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/{key}",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": self._secret,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def close(self) -> None:
        """Stop serving: no mount is left."""
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
            stored = read_json(self._state) or {}
            self._secret = stored.get("secret") or secrets.token_urlsafe(24)
            try:
                self._server = _HttpServer(self, stored.get("port", 0))
            except OSError:
                self._server = _HttpServer(self, 0)  # another process took the port while no agent ran
            write_json(self._state, {"port": self._server.server_address[1], "secret": self._secret})
            threading.Thread(target=self._server.serve_forever, args=(0.2,), name="tokens", daemon=True).start()
        return int(self._server.server_address[1])

    def respond_with_token(self, path: str, secret: str) -> tuple[int, dict[str, Any]]:
        """The status and body of the response to a request for Google's token."""
        status, token, lasts_s = self._valid(path, secret)
        if token is None:
            return status, {"error": _ERRORS[status]}
        # rclone accepts whole seconds only.
        return 200, {"access_token": token.value, "token_type": "Bearer", "expires_in": max(1, int(lasts_s))}

    def respond_with_keys(self, path: str, secret: str) -> tuple[int, dict[str, Any]]:
        """The status and body of the response to a request for AWS's keys."""
        status, token, lasts_s = self._valid(path, secret)
        if token is None:
            return status, {"Message": _ERRORS[status]}
        ends_at = time.gmtime(self._wall_clock() + lasts_s)
        keys = token.value
        return 200, {
            "AccessKeyId": keys["access_key_id"],
            "SecretAccessKey": keys["secret_access_key"],
            "Token": keys["session_token"],
            "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", ends_at),
        }

    def _valid(self, path: str, secret: str) -> tuple[int, _MountToken | None, float]:
        """The credentials of a mount, renewed if they are due, and how long rclone may use them (s); or an error."""
        if not hmac.compare_digest(secret.encode(), self._secret.encode()):
            return 401, None, 0.0
        key = path.strip("/")
        if key not in self._mounts:
            return 404, None, 0.0
        token = self._mounts[key]
        valid_until = token.renew_at
        if self._since_boot() >= token.renew_at:
            try:
                token = self._mounts[key] = self._received(token.path, self._renew(token.path))
                valid_until = token.renew_at
            except TokenUnavailable:
                valid_until = min(self._since_boot() + _RENEW_RETRY_S, token.expires_at)
        lasts_s = valid_until - self._since_boot()
        return (503, None, 0.0) if lasts_s <= 0 else (200, token, lasts_s)

    def _received(self, path: str, rclone: Mapping[str, Any]) -> _MountToken:
        """The token that has just arrived in `rclone`, whose `expires_at` is in epoch seconds."""
        now, lasts_s = self._since_boot(), float(rclone["expires_at"]) - self._wall_clock()
        value = rclone["credentials"] if "credentials" in rclone else str(rclone["access_token"])
        return _MountToken(path, value, now + lasts_s, now + max(lasts_s, 0.0) / 4)


@dataclass(frozen=True)
class _MountToken:
    """The token of the mount at `path`, or its keys as a mapping. Times in seconds since boot."""

    path: str
    value: Any
    expires_at: float
    renew_at: float


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tokens: TokenServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.tokens = tokens


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    timeout = 10

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        form = parse_qs(self.rfile.read(min(size, _MAX_REQUEST_BYTES)).decode(errors="replace"))
        secret = form.get("refresh_token", [""])[0]
        self._respond(*self.server.tokens.respond_with_token(self.path, secret))

    def do_GET(self) -> None:
        secret = str(self.headers.get("Authorization") or "")
        self._respond(*self.server.tokens.respond_with_keys(self.path, secret))

    def _respond(self, status: int, payload: dict[str, Any]) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the agent's log is about the job."""
