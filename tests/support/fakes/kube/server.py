"""The HTTP side of the fake API server: authentication, authorization, routes, watches and faults."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from support.fakes.kube.api import KubeApi
from support.fakes.kube.faults import Faults
from support.fakes.kube.selectors import matches_fields, matches_labels
from support.fakes.kube.store import Object, Rejected

TOKEN = "token-of-the-fake"
BOOKMARK_EVERY_S = 0.5
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?(?:/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?)?/?"
)


class Route(NamedTuple):
    group: str | None
    namespace: str | None
    resource: str
    name: str | None
    sub: str | None


class KubeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, api: KubeApi, faults: Faults, calls: Counter[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api, self.faults, self.calls = api, faults, calls
        self.is_closing = False

    def handle_error(self, *_: Any) -> None:
        """Tests kill the daemon in the middle of a call: that is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: KubeServer

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faults = self.server.faults
        while faults.silent and not self.server.is_closing:
            time.sleep(0.02)  # noqa: TID251 - the server answers nothing while the fault lasts
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        match = _PATH.fullmatch(unquote(url.path))
        if url.path == "/version":
            return self._answer(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.1"})
        if url.path == "/apis":
            return self._answer(200, self.server.api.api_groups())
        if match is None or not match["resource"] or not self.server.api.serves(match["group"], match["version"]):
            return self._reject(Rejected(404, "NotFound", "the server could not find the requested resource"))
        route = Route(match["group"], match["namespace"], match["resource"], match["name"], match["sub"])
        verb = _verb(self.command, route, query)
        request = f"{self.command} {route.resource}" + (f"/{route.sub}" if route.sub else "")
        self.server.calls[request if verb != "watch" else f"WATCH {route.resource}"] += 1
        if _use_up(faults.lost_requests, request):
            return self._break()
        try:
            self._authorize(verb, route)
            if faults.answers.get(request):
                status, text = faults.answers[request].pop(0)
                raise Rejected(status, _REASONS.get(status, "InternalError"), text)
            if verb == "watch":
                return self._watch(route, query)
            answer = self.server.api.answer(self.command, route, query, body, self.headers.get("Content-Type", ""))
        except Rejected as rejected:
            return self._reject(rejected)
        if _use_up(faults.lost_answers, request):
            return self._break()
        return self._answer(201 if self.command == "POST" else 200, answer)

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _serve

    def _authorize(self, verb: str, route: Route) -> None:
        if self.headers.get("Authorization") not in {f"Bearer {token}" for token in self.server.api.tokens}:
            raise Rejected(401, "Unauthorized", "Unauthorized")
        resource = route.resource + (f"/{route.sub}" if route.sub else "")
        if f"{verb} {resource}" in self.server.faults.forbid:
            where = f'in the namespace "{route.namespace}"' if route.namespace else "at the cluster scope"
            raise Rejected(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "perdure" cannot {verb} resource "{resource}" in API group '
                f'"{route.group or ""}" {where}',
            )

    def _watch(self, route: Route, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        with contextlib.suppress(ConnectionError):
            self._send_events(route, query)
            self.wfile.write(b"0\r\n\r\n")

    def _send_events(self, route: Route, query: dict[str, str]) -> None:
        store, faults = self.server.api.store, self.server.faults
        version = int(query.get("resourceVersion") or 0)
        ends_at = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
        while time.monotonic() < ends_at and not self.server.is_closing:
            with store.lock:
                if version and store.is_compacted(version):
                    self._send("ERROR", _status(410, "Expired", f"too old resource version: {version}"))
                    return
                events = list(store.events_since(version, route.resource))
                newest = store.version
                if not events:
                    store.lock.wait(0.05)
            if faults.silent:
                continue
            for _, kind, one, old in events:
                if (seen := _seen_through(kind, one, old, route, query)) is not None:
                    if faults.slow_watch_s:
                        time.sleep(faults.slow_watch_s)  # noqa: TID251 - the delay is the fault
                    self._send(seen, self.server.api.shown(one, route.resource))
            version = newest
            if query.get("allowWatchBookmarks") and time.monotonic() >= bookmark_at:
                bookmark_at = time.monotonic() + BOOKMARK_EVERY_S
                self._send("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})

    def _send(self, kind: str, one: Object) -> None:
        line = json.dumps({"type": kind, "object": one}).encode() + b"\n"
        if self.server.faults.cut_watches > 0 and kind != "BOOKMARK":
            self.server.faults.cut_watches -= 1
            line = line[: len(line) // 2]
            self.wfile.write(f"{len(line):x}\r\n".encode() + line)
            self.wfile.flush()
            self._break()
            raise ConnectionResetError
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _reject(self, rejected: Rejected) -> None:
        headers = {}
        if rejected.status == 429:
            headers["Retry-After"] = f"{self.server.faults.retry_after_s:g}"
        self._answer(rejected.status, _status(rejected.status, rejected.reason, str(rejected)), headers)

    def _answer(self, status: int, answer: Object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

    def _break(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


def _verb(method: str, route: Route, query: dict[str, str]) -> str:
    if method == "GET":
        if query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if route.name else "list"
    return {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}[method]


def _seen_through(kind: str, one: Object, old: Object | None, route: Route, query: dict[str, str]) -> str | None:
    """The type of the event that a watch with selectors gets: an object that no longer matches is DELETED."""

    def matches(other: Object | None) -> bool:
        return (
            other is not None
            and route.namespace in (None, other["metadata"].get("namespace"))
            and matches_labels(other, query.get("labelSelector"))
            and matches_fields(other, query.get("fieldSelector"))
        )

    if kind == "DELETED":
        return kind if matches(one) or matches(old) else None
    if matches(one):
        return "MODIFIED" if matches(old) else "ADDED"
    return "DELETED" if matches(old) else None


def _status(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _use_up(remaining: dict[str, int], request: str) -> bool:
    if remaining.get(request, 0) <= 0:
        return False
    remaining[request] -= 1
    return True
