"""Calls one API server over HTTP/1.1, with pooled connections. Each call is made once; `faults` classifies failures.

The standard library alone: the official client costs 57 MiB of memory and a second of CPU to import.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from perdure.controller.clouds.kubernetes.api.errors import ApiError, ConnectionBroken, NotConnected, api_error
from perdure.controller.clouds.kubernetes.api.kubeconfig import ClusterAccess
from perdure.controller.clouds.kubernetes.api.list_page import decode_page

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 30.0
MAX_IDLE_S = 20.0
MAX_IDLE_CONNECTIONS = 8
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_USER_AGENT = "perdure"


class ApiClient:
    """Calls the API server of one context. Thread-safe."""

    def __init__(self, access: ClusterAccess, *, timeout_s: float = TIMEOUT_S) -> None:
        self.access = access
        self._timeout_s = timeout_s
        url = urlsplit(access.server)
        self._is_tls, self._base = url.scheme == "https", url.path.rstrip("/")
        self._host, self._port = url.hostname or "", url.port or (443 if self._is_tls else 80)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None
        #: How far the server's clock is ahead of this computer's, in seconds. Its Date header has whole seconds.
        self.clock_offset_s = 0.0

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        return self.request("GET", path, query=query)

    def get_page(self, path: str, reduce: Callable[[dict[str, Any]], dict[str, Any]], **query: Any) -> dict[str, Any]:
        """A page of a list, whose items are reduced one by one as they are decoded."""
        return self.request("GET", path, query=query, decode=lambda body: decode_page(body, reduce))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.request("POST", path, body=body)

    def patch(self, path: str, body: Any, *, kind: str = MERGE_PATCH) -> dict[str, Any]:
        return self.request("PATCH", path, body=body, content_type=kind)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.request("DELETE", path, body=body)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        decode: Callable[[bytes], Any] = json.loads,
    ) -> dict[str, Any]:
        """The object of the response. Raises ApiError, NotConnected, ConnectionBroken or CredentialsError."""
        where = f"{method} {path}"
        content = None if body is None else json.dumps(body).encode()
        target = self._target(path, query or {})
        is_renewed = False
        while True:
            status, headers, answer = self._exchange(method, target, content, content_type)
            if status == 401 and not is_renewed and self.access.credentials.renew():
                is_renewed = True  # the server has rejected the request, so it may be sent again
                continue
            if status >= 400:
                raise api_error(status, headers, answer, where)
            try:
                return dict(decode(answer)) if answer else {}
            except ValueError as error:
                raise ConnectionBroken(f"{where}: the response is not JSON") from error

    def watch(self, path: str, *, silence_s: float, **query: Any) -> Iterator[dict[str, Any]]:
        """The events of a watch until the server ends it. Raises what `request` does; ConnectionBroken after
        `silence_s` without a byte."""
        connection = self._connect(silence_s)
        try:
            connection.request("GET", self._target(path, {**query, "watch": "true"}), headers=self._headers())
            response = connection.getresponse()
            if response.status >= 400:
                if response.status == 401:
                    self.access.credentials.renew()
                raise api_error(response.status, dict(response.headers), response.read(), f"WATCH {path}")
            self._note_date(response.headers.get("Date"))
            while line := response.readline():
                if not line.endswith(b"\n"):
                    raise ConnectionBroken(f"WATCH {path}: ended in the middle of an event")
                yield dict(json.loads(line))
        except (http.client.HTTPException, OSError, ValueError) as error:
            if isinstance(error, ConnectionBroken | NotConnected):
                raise
            raise ConnectionBroken(f"WATCH {path}: {_words(error)}") from error
        finally:
            connection.close()

    # ---- private ----

    def _target(self, path: str, query: Mapping[str, Any]) -> str:
        given = {name: value for name, value in query.items() if value is not None}
        return f"{self._base}{quote(path)}" + (f"?{urlencode(given)}" if given else "")

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": _USER_AGENT, "Accept": "application/json", **self.access.credentials.headers()}

    def _exchange(
        self, method: str, target: str, content: bytes | None, content_type: str
    ) -> tuple[int, dict[str, str], bytes]:
        headers = self._headers() | ({"Content-Type": content_type} if content is not None else {})
        with self._connection() as connection:
            try:
                connection.request(method, target, body=content, headers=headers)
                response = connection.getresponse()
                body = response.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                raise ConnectionBroken(f"{method} {self._host}:{self._port}: {_words(error)}") from error
            self._note_date(response.headers.get("Date"))
            return response.status, dict(response.headers), body

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """An idle connection that the server has not closed, or a new one. It is kept if it is still open."""
        connection = self._take_idle() or self._connect(self._timeout_s)
        yield connection
        if connection.sock is not None:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
                extra, self._idle = self._idle[:-MAX_IDLE_CONNECTIONS], self._idle[-MAX_IDLE_CONNECTIONS:]
            for _, one in extra:
                one.close()

    def _take_idle(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if time.monotonic() - since < MAX_IDLE_S and not _has_ended(connection.sock):
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        proxy = urlsplit(self.access.proxy_url) if self.access.proxy_url else None
        host, port = (proxy.hostname or "", proxy.port or 3128) if proxy else (self._host, self._port)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            sock = socket.create_connection((host, port), timeout=min(CONNECT_TIMEOUT_S, timeout_s))
            try:
                _detect_dead_peers(sock)
                sock.settimeout(timeout_s)
                if proxy and self._is_tls:
                    _open_tunnel(sock, self._host, self._port)
                if self._is_tls:
                    sock = self._tls_context().wrap_socket(
                        sock, server_hostname=self.access.tls_server_name or self._host
                    )
            except BaseException:
                sock.close()
                raise
        except (OSError, ValueError) as error:
            raise NotConnected(f"{self._host}:{self._port}: {_words(error)}") from error
        connection.sock = sock
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        certificate = self.access.credentials.certificate()
        with self._lock:
            if self._tls is not None and self._tls[0] == certificate:
                return self._tls[1]
        context = ssl.create_default_context(cadata=self.access.ca)
        if self.access.is_insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            # The ssl module loads a key from a file alone. A temporary file is readable by its owner only.
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:
                file.write(b"\n".join(certificate))
                file.flush()
                context.load_cert_chain(file.name)
        with self._lock:
            self._tls = (certificate, context)
        return context

    def _note_date(self, date: str | None) -> None:
        if date:
            try:
                offset_s = parsedate_to_datetime(date).timestamp() - time.time()  # noqa: TID251 - compares two clocks
            except (ValueError, TypeError):
                return
            self.clock_offset_s = offset_s if abs(offset_s) > 2.0 else 0.0


def is_not_found(error: Exception) -> bool:
    return isinstance(error, ApiError) and error.status == 404


def _has_ended(sock: socket.socket | None) -> bool:
    """Whether the server has closed an idle connection: then it is readable."""
    if sock is None:
        return True
    timeout_s = sock.gettimeout()
    try:
        sock.setblocking(False)
        sock.recv(1, socket.MSG_PEEK) if not isinstance(sock, ssl.SSLSocket) else sock.read(1)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except (OSError, ValueError):
        return True
    finally:
        sock.settimeout(timeout_s)
    return True


def _detect_dead_peers(sock: socket.socket) -> None:
    """Let a line that dies silently end within half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 25_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _open_tunnel(sock: socket.socket, host: str, port: int) -> None:
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    response = http.client.HTTPResponse(sock, method="CONNECT")
    response.begin()
    if response.status != 200:
        raise OSError(f"the proxy answered {response.status} {response.reason}")


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
