"""A thin client of the controller's HTTP API (`docs/reference/api.md`), on the standard library's `http.client`.

One method per call of the API, and one connection per call, so that a broken connection affects one call only.
Idempotent calls are repeated for a few seconds. `jobs`, `clusters`, `uploads` and `logs` build on them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from perdure.sdk.connection import api_types
from perdure.sdk.connection.discovery import restart_if_embedded
from perdure.sdk.connection.endpoint import ClientError, Endpoint
from perdure.sdk.connection.responses import NotAController, Response, expect, expect_list, parse_clean
from perdure.sdk.connection.transport import connect, connection_fix

CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 120.0
STREAM_IDLE_TIMEOUT_S = 60.0  # a silent stream may be dead after this: it is reopened where it stopped
_RETRY_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)  # between attempts of a call; a controller restarts in less
PAGE_SIZE = 1000  # jobs
BUSY_TIMEOUT_S = 120.0  # how long 429 and 503 responses with Retry-After are retried
OFFSET_HEADER = "Perdure-Offset"

Config = dict[str, Any]


class ApiError(ClientError):
    """The controller rejected the call. `status` is the HTTP status: 400 bad input, 401 token, 404, 409 conflict, 413
    too large, 429 too many, 503 overloaded. `retry_after_s`: the response's Retry-After, if it had one."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        where: str | None = None,
        fix: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.status = status
        self.retry_after_s = retry_after_s


class ConnectionLost(ClientError):
    """No controller answered, or the connection broke during the response. The call may have had its effect."""


@dataclass(frozen=True)
class LogStream:
    """The bytes of a log of the controller at `url`. `offset`: of the first byte; None if the server did not send it.

    Iterating ends when the server ends the stream, and raises ConnectionLost when the connection breaks.
    """

    response: http.client.HTTPResponse
    offset: int | None
    url: str

    def __iter__(self) -> Iterator[bytes]:
        with _translate_connection_errors(self.url):
            while chunk := self.response.read1(64 * 1024):
                yield chunk


class Client:
    """Calls one controller. Every method raises ApiError, ConnectionLost or NotAController; WrongCertificate before
    anything is sent to another server; NoController if the embedded controller crashed and cannot be restarted."""

    def __init__(self, endpoint: Endpoint, *, clean: Callable[[Any], Any] = lambda value: value) -> None:
        """`clean` escapes control characters, in the controller's JSON values and in its errors' texts."""
        self.endpoint = endpoint
        self.clean = clean
        self._has_connected = False

    def controller(self) -> api_types.ControllerInfo:
        return self._expect(api_types.ControllerInfo, self._call("GET", "/controller"))

    def create_sign_in_code(self) -> api_types.SignInCode:
        """A code that signs one browser in to the dashboard."""
        return self._expect(api_types.SignInCode, self._call_once("POST", "/session/codes", body={}))

    def stop_controller(self) -> None:
        self._call_once("POST", "/controller/stop", body={})

    def put_software(self, pack: bytes) -> api_types.Installed:
        """Install another version of Perdure on a hosted controller."""
        headers = {"Content-Type": "application/octet-stream"}
        with self._response("PUT", "/controller/software", data=pack, headers=headers, idle_timeout_s=None) as response:
            return self._expect(api_types.Installed, json.loads(response.read()))

    def clouds(self) -> list[api_types.Cloud]:
        return expect_list(api_types.Cloud, self._call("GET", "/clouds"), self.endpoint.url)

    def findings(self, cloud: str, *, deep: bool = False) -> list[api_types.Finding]:
        """The results of checking a cloud account. Takes seconds. `deep`: rehearse launches, too; buys nothing."""
        path, query = f"/clouds/{quote(cloud, safe='')}/findings", {"deep": deep or None}
        return expect_list(api_types.Finding, self._call("GET", path, query=query), self.endpoint.url)

    def gpus(
        self, *, name: str = "", count: float | None = None, cloud: str = "", region: str = ""
    ) -> list[api_types.Gpu]:
        """The offers with accelerators, by region, with their prices."""
        query = {"name": name or None, "count": count, "cloud": cloud or None, "region": region or None}
        return expect_list(api_types.Gpu, self._call("GET", "/gpus", query=query), self.endpoint.url)

    def has_upload(self, sha256: str) -> bool:
        try:
            self._call("HEAD", f"/uploads/{sha256}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def put_upload(self, sha256: str, archive: IO[bytes], size_bytes: int) -> None:
        """Send a tar.gz, read in blocks from `archive`."""
        headers = {"Content-Type": "application/gzip", "Content-Length": str(size_bytes)}
        with self._response("PUT", f"/uploads/{sha256}", data=archive, headers=headers) as response:
            response.read()

    def plan(self, name: str | None, tasks: Sequence[Config], **options: Any) -> api_types.Plan:
        body = {"name": name, "tasks": list(tasks)} | {key: value for key, value in options.items() if value}
        return self.call(api_types.Plan, "POST", "/plan", body=body)

    def submit(
        self, name: str | None, tasks: Sequence[Config], *, user: str, key: str, num_jobs: int = 1
    ) -> api_types.Submitted:
        """Submit a job, or `num_jobs` identical ones. Repeating it with the same `key` returns the original jobs."""
        body = {"name": name, "tasks": list(tasks), "user": user, "key": key, "num_jobs": num_jobs}
        return self._expect(api_types.Submitted, self._call("POST", "/jobs", body=body))

    def jobs(
        self,
        *,
        limit: int | None = None,
        skip_finished: bool = False,
        statuses: Sequence[str] = (),
        name: str | None = None,
        ids: Sequence[int] | None = None,
        before: int | None = None,
    ) -> api_types.JobPage:
        query = {
            "limit": limit,
            "skip_finished": 1 if skip_finished else None,
            "status": ",".join(statuses) or None,
            "name": name,
            "ids": None if ids is None else ",".join(map(str, ids)),
            "before": before,
        }
        return self._expect(api_types.JobPage, self._call("GET", "/jobs", query=query))

    def job_pages(
        self, *, skip_finished: bool = False, statuses: Sequence[str] = (), name: str | None = None
    ) -> Iterator[api_types.JobPage]:
        """All jobs, newest first, page by page. The next page is requested before the current one is returned, so
        that the controller and the caller work at the same time; both hold at most two pages. Jobs launched meanwhile
        are not included."""
        query = {
            "limit": PAGE_SIZE,
            "skip_finished": int(skip_finished),
            "status": ",".join(statuses) or None,
            "name": name,
        }
        page = self._expect(api_types.JobPage, self._call("GET", "/jobs", query=query))
        while len(ids := {job["job_id"] for job in page["jobs"]}) == PAGE_SIZE:
            with self._prefetched("/jobs", {**query, "before": min(ids)}) as next_page:
                yield page
                page = next_page()
        yield page

    def job(self, job_id: int) -> api_types.JobDetail:
        return self._expect(api_types.JobDetail, self._call("GET", f"/jobs/{job_id}"))

    def cancel(
        self,
        *,
        ids: Sequence[int] | None = None,
        name: str | None = None,
        everything: bool = False,
        graceful: bool = True,
        grace_s: float | None = None,
    ) -> api_types.Cancelled:
        chosen = None if ids is None else list(ids)
        body = {"ids": chosen, "name": name, "all": everything, "graceful": graceful, "grace_s": grace_s}
        return self._expect(api_types.Cancelled, self._call("POST", "/jobs/cancel", body=body))

    def preempt(self, job_id: int, *, node: int = 0, notice_s: float | None = None) -> api_types.Preempted:
        body = {"node": node, "notice_s": notice_s}
        return self._expect(api_types.Preempted, self._call_once("POST", f"/jobs/{job_id}/preempt", body=body))

    @contextlib.contextmanager
    def logs(
        self,
        job_id: int,
        *,
        task: int | None = None,
        attempt: int | None = None,
        follow: bool = True,
        tail: int | None = None,
        offset: int | None = None,
    ) -> Iterator[LogStream]:
        """The job's log from byte `offset` of the rendered stream; without it, the last `tail` lines or everything."""
        query = {"task": task, "attempt": attempt, "follow": int(follow), "tail": tail, "offset": offset}
        with self._response(
            "GET", f"/jobs/{job_id}/logs", query=query, idle_timeout_s=STREAM_IDLE_TIMEOUT_S
        ) as response:
            if offset is None:
                header = response.headers.get(OFFSET_HEADER, "")
                offset = int(header) if header.isdigit() else None if tail else 0
            yield LogStream(response, offset, self.endpoint.url)

    @contextlib.contextmanager
    def controller_logs(self, *, follow: bool, tail: int | None) -> Iterator[LogStream]:
        query = {"follow": int(follow), "tail": tail}
        with self._response("GET", "/controller/logs", query=query, idle_timeout_s=None) as response:
            yield LogStream(response, None, self.endpoint.url)

    def call(self, kind: type[Response], method: str, path: str, **call: Any) -> Response:
        """An idempotent call whose response is a `kind`. `call`: `query` and `body`."""
        return self._expect(kind, self._call(method, path, **call))

    def _expect(self, kind: type[Response], value: Any) -> Response:
        return expect(kind, value, self.endpoint.url)

    def _call(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Make an idempotent call. Repeats it if the connection breaks or the controller asks to be called later."""
        give_up_at = monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self._call_with_retries(method, path, query=query, body=body)
            except ApiError as error:
                if error.status not in (429, 503) or error.retry_after_s is None:
                    raise
                # Jitter: clients that were rejected together must not return together.
                pause_s = error.retry_after_s * random.uniform(1.0, 1.5)  # noqa: S311 - not a secret
                if monotonic() + pause_s >= give_up_at:
                    raise
            Event().wait(max(_RETRY_PAUSES_S[0], pause_s))

    def _call_with_retries(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        for pause_s in _RETRY_PAUSES_S:
            try:
                return self._call_once(method, path, query=query, body=body)
            except ConnectionLost:
                if self.endpoint.home is None and not self._has_connected:
                    raise  # nothing listens there, so waiting does not help
            Event().wait(pause_s)
        return self._call_once(method, path, query=query, body=body)

    def _call_once(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        with (
            self._response(method, path, query=query, data=data, headers=headers) as response,
            _translate_connection_errors(self.endpoint.url),
        ):
            text = response.read()
        try:
            return parse_clean(text, self.clean) if text.strip() else None
        except ValueError as error:
            raise NotAController(self.endpoint.url, "something else than JSON") from error

    @contextlib.contextmanager
    def _prefetched(self, path: str, query: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
        """Send a GET before the block runs. The yielded function waits for the response; if the request has failed, it
        makes an ordinary call instead."""
        with contextlib.ExitStack() as stack:
            link = None
            with contextlib.suppress(ConnectionLost):
                link = stack.enter_context(self._request("GET", path, query=query))

            def result() -> Any:
                with contextlib.suppress(ConnectionLost, ValueError), _translate_connection_errors(self.endpoint.url):
                    if link is not None and (response := link.getresponse()).status == 200:
                        return parse_clean(response.read(), self.clean)
                return self._call("GET", path, query=query)

            yield result

    @contextlib.contextmanager
    def _response(self, method: str, path: str, **call: Any) -> Iterator[http.client.HTTPResponse]:
        """The open response to a successful call; `call`: arguments of `_request`. Errors of the block pass through."""
        with self._request(method, path, **call) as link:
            with _translate_connection_errors(self.endpoint.url):
                response = link.getresponse()
                if response.status >= 400:
                    raise _api_error(response, self.endpoint)
            yield response

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = RESPONSE_TIMEOUT_S,
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection on which the request was sent and whose response can be read."""
        target = urlsplit(self.endpoint.url).path + "/api/v1" + path
        if filled := {key: value for key, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(filled, doseq=True)
        with _translate_connection_errors(self.endpoint.url):
            link = self._open_connection()
        with contextlib.closing(link):
            with _translate_connection_errors(self.endpoint.url):
                link.sock.settimeout(idle_timeout_s)
                # A server may reject (401, 413) before it has read the whole body; its response matters more.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    token = {"Authorization": f"Bearer {self.endpoint.token}"}
                    link.request(method, target, data, {**token, **(headers or {})})
            yield link

    def _open_connection(self) -> http.client.HTTPConnection:
        """An open connection. Follows the embedded controller to a new address, and restarts it if it crashed."""
        link = connect(self.endpoint, timeout_s=CONNECT_TIMEOUT_S)
        try:
            link.connect()
        except OSError:
            moved = restart_if_embedded(self.endpoint.home) if self.endpoint.home else None
            if moved is None:
                raise
            self.endpoint = moved
            link = connect(moved, timeout_s=CONNECT_TIMEOUT_S)
            link.connect()
        self._has_connected = True
        return link


def user_name() -> str:
    """The name of the user who launches: `USER`, or else the operating system's name for this user ID."""
    if name := os.environ.get("USER"):
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


@contextlib.contextmanager
def _translate_connection_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        fix = connection_fix(url, error)
        raise ConnectionLost(f"the controller at {url} does not answer: {reason}", fix=fix) from error


def _api_error(response: http.client.HTTPResponse, endpoint: Endpoint) -> ApiError:
    text = response.read(1024 * 1024)
    if response.status == 401:
        return ApiError("the controller rejects this token", status=401, fix=_token_fix(endpoint))
    try:
        error = json.loads(text)["error"]
        return ApiError(
            str(error["message"]),
            status=response.status,
            where=error.get("where"),
            fix=error.get("fix") or None,
            retry_after_s=_retry_after_s(response),
        )
    except (ValueError, TypeError, KeyError):
        answer = f"{response.status} {response.reason}"
        if text and response.status < 500:  # an error of a controller is JSON, and a proxy's own errors are 5xx
            raise NotAController(endpoint.url, answer) from None
        body = " ".join(text.decode("utf-8", "replace").split())[:200]
        message = f"the controller at {endpoint.url} answered {answer}: {body}"
        return ApiError(message, status=response.status)


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdecimal() else None


def _token_fix(endpoint: Endpoint) -> str:
    if endpoint.home is None:
        return "check PERDURE_TOKEN (or the file that PERDURE_TOKEN_FILE names)"
    return f"{endpoint.home / 'token'} was changed; run: perdure controller stop && perdure controller start"
