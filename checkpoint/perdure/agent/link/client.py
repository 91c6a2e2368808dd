"""The client for the controller's node API: three downloads and the channel, authorized by the attempt's token.

It ignores the environment's proxies: the channel cannot use one, and a node that can download but not connect would be
worse than one that can do neither.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from perdure.agent.link import tls
from perdure.agent.link.websocket import SEND_TIMEOUT_S, Disconnected, UpgradeRefused, WebSocket

TIMEOUT_S = 15.0
CHUNK_BYTES = 1 << 20
STREAM_SEND_TIMEOUT_S = 24 * 3600.0
DEAD_PEER_S = 90.0


class TokenRevoked(Exception):
    """The controller rejected this node's token (401): nothing may continue to run here."""


class ControllerRejected(Exception):
    """The controller rejected the request, and a retry will not help."""


class Unreachable(Exception):
    """No answer, or an error that may pass."""


class _Https(urllib.request.HTTPSHandler):
    """Opens https:// URLs over `tls.TlsConnection`."""

    def __init__(self, fingerprint: str | None) -> None:
        super().__init__()
        self._fingerprint = fingerprint

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(tls.TlsConnection, fingerprint=self._fingerprint), req)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ControllerClient:
    """Calls one controller. Every method but `own_address` raises TokenRevoked, ControllerRejected or Unreachable."""

    def __init__(self, endpoint: str, token: str, rank: int, *, fingerprint: str | None = None) -> None:
        """`fingerprint`: SHA-256 of the only certificate to trust, if the endpoint uses TLS."""
        self._base = endpoint.rstrip("/") + "/agent/v1"
        self._headers = {"Authorization": f"Bearer {token}", "Perdure-Rank": str(rank)}
        self._fingerprint = fingerprint
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Https(fingerprint), _NoRedirects())

    def spec(self) -> dict[str, Any]:
        """The node spec as received."""
        try:
            with self._open("/spec") as response:
                value = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unreachable(f"reading the node spec: {error}") from None
        if not isinstance(value, dict):
            raise ControllerRejected("the node spec is not a JSON object")
        return value

    def trade_token(self, nonce: str) -> str:
        """The attempt's token, for the boot token of this client."""
        try:
            with self._open("/token", json.dumps({"nonce": nonce}).encode()) as response:
                return str(json.loads(response.read())["token"])
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            raise Unreachable(f"trading the boot token: {error}") from None

    def report_home(self, problem: str) -> None:
        """Report that the home was saved as the node spec asked, or, if `problem` is not empty, why it was not."""
        with self._open("/home", json.dumps({"problem": problem}).encode()):
            pass

    def download(self, kind: str, digest: str, path: Path) -> None:
        """Download a file of `kind` ("artifacts", "uploads") to `path`: with the right sha256, or not at all."""
        temporary = path.with_name(path.name + ".part")
        sha256 = hashlib.sha256()
        try:
            with self._open(f"/{kind}/{digest}") as response, open(temporary, "wb") as file:
                for chunk in iter(lambda: response.read(CHUNK_BYTES), b""):
                    sha256.update(chunk)
                    file.write(chunk)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"downloading {kind}/{digest[:12]}: {error}") from None
        if sha256.hexdigest() != digest:
            raise Unreachable(f"downloading {kind}/{digest[:12]}: the content has another digest")
        os.replace(temporary, path)

    def open_channel(self) -> WebSocket:
        return self._open_socket("/channel", send_timeout_s=SEND_TIMEOUT_S)

    def open_stream(self, stream_id: str) -> WebSocket:
        """The connection of a stream that the controller has requested. A slow reader may hold it up for long.

        Raises ControllerRejected if the controller that answers does not expect this stream.
        """
        ws = self._open_socket(f"/streams/{stream_id}", send_timeout_s=STREAM_SEND_TIMEOUT_S)
        ws.expect_acknowledgements(within_s=DEAD_PEER_S)
        return ws

    def _open_socket(self, path: str, *, send_timeout_s: float) -> WebSocket:
        try:
            return WebSocket.connect(
                self._base + path, self._headers, fingerprint=self._fingerprint, send_timeout_s=send_timeout_s
            )
        except UpgradeRefused as refused:
            if refused.status == 401:
                raise TokenRevoked from None
            if refused.status == 404:
                raise ControllerRejected("the controller does not expect this stream") from None
            raise Unreachable(str(refused)) from None
        except (OSError, Disconnected) as error:
            raise Unreachable(f"connecting: {error}") from None

    def own_address(self) -> str:
        """This machine's address on the route to the controller; "" without a route. Sends nothing."""
        parts = urlsplit(self._base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            family, kind, _, _, address = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            return ""

    def _open(self, path: str, body: bytes | None = None) -> Any:
        """GET, or POST with a body of JSON."""
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, body, headers)  # noqa: S310 (Config checked the scheme)
        try:
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 401:
                raise TokenRevoked from None
            if 400 <= error.code < 500 and error.code not in (408, 409, 425, 429):
                raise ControllerRejected(f"the controller answered {error.code} to {path[:40]}") from None
            raise Unreachable(f"the controller answered {error.code} to {path[:40]}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"calling the controller: {error}") from None
