"""A thin client of the controller's HTTP API (`docs/api.md`), on the standard library's `http.client`.

One method per call of the API, one connection per call: a broken one harms nothing else. A call that may be repeated
is, for a few seconds. What to upload and how logs are resumed is decided in `jobs`, `uploads` and `logs`.
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
from typing import IO, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from perdure.sdk import records
from perdure.sdk.endpoint import ClientError, Endpoint, revived
from perdure.sdk.pinning import connect

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 120.0
STREAM_SILENCE_S = 60.0  # a stream that says nothing for so long may be dead: it is opened again where it stopped
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)  # between tries of a call: a controller is started anew in less
PAGE = 1000  # jobs
BUSY_PATIENCE_S = 120.0  # with a controller that asks to be called later
OFFSET_HEADER = "Perdure-Offset"

Config = dict[str, Any]


class ApiError(ClientError):
    """The controller refused. `status` is HTTP's: 400 bad input, 401 token, 404, 409 not now, 413 too large, 429 too
    many already, 503. `retry_after_s`: when it asks to be called again, if it does."""

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
    """No controller answered, or it went away in the middle of an answer: the call may have had its effect or not."""


@dataclass(frozen=True)
class LogStream:
    """Bytes of a job's log as they come. `offset` counts bytes before the first of them; None: the server did not say.

    Iterating raises `ConnectionLost` when the stream breaks; it ends quietly when the server ended it.
    """

    response: http.client.HTTPResponse
    offset: int | None

    def __iter__(self) -> Iterator[bytes]:
        with _losses_named():
            while chunk := self.response.read1(64 * 1024):
                yield chunk


class Client:
    """Calls one controller. Every method raises `ApiError` or `ConnectionLost`; `WrongCertificate` before anything is
    sent to somebody else; `NoController` if its own one can not be started anew after a crash."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._has_connected = False

    def controller(self) -> records.ControllerInfo:
        return cast(records.ControllerInfo, self._call("GET", "/controller"))

    def stop_controller(self) -> None:
        self._call_once("POST", "/controller/stop", body={})

    def put_software(self, pack: bytes) -> records.Installed:
        """Have a controller on a machine of its own run another Perdure."""
        headers = {"Content-Type": "application/octet-stream"}
        with self._answer("PUT", "/controller/software", data=pack, headers=headers, silence_s=None) as response:
            return cast(records.Installed, json.loads(response.read()))

    def clouds(self) -> list[records.Cloud]:
        return cast("list[records.Cloud]", self._call("GET", "/clouds"))

    def findings(self, cloud: str) -> list[records.Finding]:
        """What a look through a cloud's set-up finds; it takes seconds."""
        return cast("list[records.Finding]", self._call("GET", f"/clouds/{quote(cloud, safe='')}/findings"))

    def gpus(
        self, *, name: str = "", count: float | None = None, cloud: str = "", region: str = ""
    ) -> list[records.Gpu]:
        """What can be had with accelerators, where, and for how much."""
        query = {"name": name or None, "count": count, "cloud": cloud or None, "region": region or None}
        return cast("list[records.Gpu]", self._call("GET", "/gpus", query=query))

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
        with self._answer("PUT", f"/uploads/{sha256}", data=archive, headers=headers) as response:
            response.read()

    def plan(self, name: str | None, tasks: Sequence[Config], *, forecast: bool = False) -> records.Plan:
        body = {"name": name, "tasks": list(tasks)} | ({"forecast": True} if forecast else {})
        return cast(records.Plan, self._call("POST", "/plan", body=body))

    def submit(
        self, name: str | None, tasks: Sequence[Config], *, user: str, key: str, num_jobs: int = 1
    ) -> records.Submitted:
        """Hand in a job, or `num_jobs` alike. Safe to repeat with the same `key` after a `ConnectionLost`: what it made
        the first time is returned."""
        body = {"name": name, "tasks": list(tasks), "user": user, "key": key, "num_jobs": num_jobs}
        return cast(records.Submitted, self._call("POST", "/jobs", body=body))

    def jobs(
        self,
        *,
        limit: int | None = None,
        skip_finished: bool = False,
        statuses: Sequence[str] = (),
        name: str | None = None,
        ids: Sequence[int] = (),
        before: int | None = None,
    ) -> records.JobPage:
        query = {
            "limit": limit,
            "skip_finished": 1 if skip_finished else None,
            "status": ",".join(statuses) or None,
            "name": name,
            "ids": ",".join(map(str, ids)) or None,
            "before": before,
        }
        return cast(records.JobPage, self._call("GET", "/jobs", query=query))

    def job_pages(
        self, *, skip_finished: bool = False, statuses: Sequence[str] = (), name: str | None = None
    ) -> Iterator[records.JobPage]:
        """Every job, newest first: one call a page, made just before the page before is handed out, so that the
        controller is at work on the one while the caller is at the other. However many there are, each end holds two
        pages at most. Jobs that are launched meanwhile are not among them."""
        query = {"limit": PAGE, "skip_finished": int(skip_finished), "status": ",".join(statuses) or None, "name": name}
        page: records.JobPage = self._call("GET", "/jobs", query=query)
        while len(ids := {job["job_id"] for job in page["jobs"]}) == PAGE:
            with self._asked("/jobs", {**query, "before": min(ids)}) as answer:
                yield page
                page = answer()
        yield page

    def job(self, job_id: int) -> records.JobDetail:
        return cast(records.JobDetail, self._call("GET", f"/jobs/{job_id}"))

    def cancel(
        self,
        *,
        ids: Sequence[int] | None = None,
        name: str | None = None,
        everything: bool = False,
        graceful: bool = True,
        grace_s: float | None = None,
    ) -> records.Cancelled:
        chosen = None if ids is None else list(ids)
        body = {"ids": chosen, "name": name, "all": everything, "graceful": graceful, "grace_s": grace_s}
        return cast(records.Cancelled, self._call("POST", "/jobs/cancel", body=body))

    def preempt(self, job_id: int, *, node: int = 0, notice_s: float | None = None) -> records.Preempted:
        body = {"node": node, "notice_s": notice_s}
        return cast(records.Preempted, self._call_once("POST", f"/jobs/{job_id}/preempt", body=body))

    @contextlib.contextmanager
    def logs(
        self,
        job_id: int,
        *,
        task: int | None = None,
        follow: bool = True,
        tail: int | None = None,
        offset: int | None = None,
    ) -> Iterator[LogStream]:
        """The job's log. `offset` counts bytes of the whole rendered stream; without it, `tail` lines or everything."""
        query = {"task": task, "follow": int(follow), "tail": tail, "offset": offset}
        with self._answer("GET", f"/jobs/{job_id}/logs", query=query, silence_s=STREAM_SILENCE_S) as response:
            if offset is None:
                said = response.headers.get(OFFSET_HEADER, "")
                offset = int(said) if said.isdigit() else None if tail else 0
            yield LogStream(response, offset)

    @contextlib.contextmanager
    def controller_logs(self, *, follow: bool, tail: int | None) -> Iterator[LogStream]:
        query = {"follow": int(follow), "tail": tail}
        with self._answer("GET", "/controller/logs", query=query, silence_s=None) as response:
            yield LogStream(response, None)

    def _call(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The answer to a call that may be repeated safely, however the connection breaks meanwhile. A controller that
        asks for time is given it."""
        give_up_at = monotonic() + BUSY_PATIENCE_S
        while True:
            try:
                return self._call_through_losses(method, path, query=query, body=body)
            except ApiError as error:
                if error.status != 503 or error.retry_after_s is None:
                    raise
                # Callers that were turned away together do not come back together.
                pause_s = error.retry_after_s * random.uniform(1.0, 1.5)  # noqa: S311 - no secret
                if monotonic() + pause_s >= give_up_at:
                    raise
            Event().wait(max(_PAUSES_S[0], pause_s))

    def _call_through_losses(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        for pause_s in _PAUSES_S:
            try:
                return self._call_once(method, path, query=query, body=body)
            except ConnectionLost:
                if self.endpoint.home is None and not self._has_connected:
                    raise  # nothing listens there: waiting is of no use
            Event().wait(pause_s)
        return self._call_once(method, path, query=query, body=body)

    def _call_once(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        with self._answer(method, path, query=query, data=data, headers=headers) as response, _losses_named():
            text = response.read()
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise _not_a_controller(self.endpoint.url) from error

    @contextlib.contextmanager
    def _asked(self, path: str, query: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
        """A GET that is under way while the block does other things; what is yielded waits for its answer. If anything
        goes wrong with it before, another call is made, of the usual kind."""
        with contextlib.ExitStack() as sent:
            link = None
            with contextlib.suppress(ConnectionLost):
                link = sent.enter_context(self._sent("GET", path, query=query))

            def answer() -> Any:
                with contextlib.suppress(ConnectionLost, ValueError), _losses_named():
                    if link is not None and (response := link.getresponse()).status == 200:
                        return json.loads(response.read())
                return self._call("GET", path, query=query)

            yield answer

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, **call: Any) -> Iterator[http.client.HTTPResponse]:
        """An open answer whose status is good; `call`: as `_sent` takes it. Errors of the block pass through."""
        with self._sent(method, path, **call) as link:
            with _losses_named():
                response = link.getresponse()
                if response.status >= 400:
                    raise _refusal(response, self.endpoint)
            yield response

    @contextlib.contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None = ANSWER_TIMEOUT_S,
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection on which the call was made and whose answer is to be read."""
        target = urlsplit(self.endpoint.url).path + "/api/v1" + path
        if filled := {key: value for key, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(filled)
        with _losses_named():
            link = self._connected()
        with contextlib.closing(link):
            with _losses_named():
                link.sock.settimeout(silence_s)
                # A server may refuse (401, 413) before it has read all of the body; its answer matters more.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    token = {"Authorization": f"Bearer {self.endpoint.token}"}
                    link.request(method, target, data, {**token, **(headers or {})})
            yield link

    def _connected(self) -> http.client.HTTPConnection:
        """A connection; to where the embedded controller is now. One that crashed is started anew."""
        link = connect(self.endpoint, timeout_s=CONNECT_TIMEOUT_S)
        try:
            link.connect()
        except OSError:
            moved = revived(self.endpoint.home) if self.endpoint.home else None
            if moved is None:
                raise
            self.endpoint = moved
            link = connect(moved, timeout_s=CONNECT_TIMEOUT_S)
            link.connect()
        self._has_connected = True
        return link


def is_healthy(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether a controller answers there. Raises `WrongCertificate`."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/healthz")
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def knows(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether what answers at the endpoint takes its token."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/api/v1/controller", headers={"Authorization": f"Bearer {endpoint.token}"})
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def user_name() -> str:
    """Who is launching, as the operating system or `USER` knows them."""
    if name := os.environ.get("USER"):
        return name
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


@contextlib.contextmanager
def _losses_named() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        said = str(error) or type(error).__name__
        raise ConnectionLost(
            f"the controller does not answer: {said}", fix="see how it is: perdure controller status"
        ) from error


def _refusal(response: http.client.HTTPResponse, endpoint: Endpoint) -> ApiError:
    text = response.read(1024 * 1024)
    if response.status == 401:
        return ApiError("the controller does not know this token", status=401, fix=_token_fix(endpoint))
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
        shown = " ".join(text.decode("utf-8", "replace").split())[:200]
        return ApiError(f"the controller answered {response.status} {response.reason}: {shown}", status=response.status)


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    return float(text) if text.isascii() and text.isdecimal() else None


def _token_fix(endpoint: Endpoint) -> str:
    if endpoint.home is None:
        return "check PERDURE_TOKEN (or the file that PERDURE_TOKEN_FILE names)"
    return f"{endpoint.home / 'token'} was changed; run: perdure controller stop && perdure controller start"


def _not_a_controller(url: str) -> ApiError:
    return ApiError(f"what answers at {quote(url, safe=':/')} is no perdure controller", status=502)
