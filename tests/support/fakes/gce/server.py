"""The server: it checks callers, requests and its own responses, and injects faults."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from support.fakes import google_account, google_field_masks
from support.fakes.gce import billing, discovery, pubsub
from support.fakes.gce.discovery import Call, Invalid
from support.fakes.gce.faults import DENIALS, Faults
from support.fakes.gce.fleet import PROJECT
from support.fakes.gce.gce import Gce
from support.fakes.gce.holdings import Holdings
from support.fakes.gce.iam import Iam
from support.fakes.gce.pubsub import PubSub
from support.fakes.instance_processes import Machines
from support.fakes.purchases import Purchase

REGIONS = ("us-central1", "us-east4")


class FakeGce:
    """See the package. `folder` is for machines, None to run none. `hidden` is a folder that machines cannot see.

    `make_machines`: makes what runs them (cloud, folder, hidden).
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        hidden: Path | None = None,
        regions: tuple[str, ...] = REGIONS,
        make_machines: Callable[[str, Path, Path], Any] = Machines,
    ) -> None:
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # "instances.bulkInsert" → how often; throttled and denied ones too
        self.response_bytes: Counter[str] = Counter()  # method → the size of its largest response
        self.regions = regions
        self.settings: dict[str, Any] = {}  # more of the section in config.yaml
        self.wrong_answers: list[str] = []  # responses that Google cannot give: errors of this fake
        self.pubsub = PubSub()
        machines = make_machines("gcp", folder, hidden or folder) if folder else None
        self._gce = Gce(self.faults, machines, regions)
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._credentials = Path(mkdtemp()) / "credentials.json"

    def __enter__(self) -> Self:
        self._thread.start()
        self._credentials.write_text(json.dumps(google_account.key_file(PROJECT, f"{self.url}/token")))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
        assert not self.wrong_answers

    def close(self) -> None:
        """Stop the server, and end all machines."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._gce.close()
        self._credentials.unlink()
        self._credentials.parent.rmdir()

    # ---- for the controller ----

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def config(self) -> str:
        """A section of config.yaml."""
        section = {"endpoint_url": self.url, "regions": list(self.regions), **self.settings}
        return f"gcp: {json.dumps(section)}\n"

    def subscription(self, name: str) -> str:
        """The URL of a subscription, for `gcp.interruption_queues`. `pubsub` names it by the part after `/v1/`."""
        return f"{self.url}/v1/projects/{PROJECT}/subscriptions/{name}"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials, without the Google Cloud configuration of this computer."""
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self._credentials), "NO_GCE_CHECK": "true"}

    # ---- for tests ----

    def purchases(self) -> list[Purchase]:
        """All instances ever launched, in order of launch, in their current state."""
        return self._gce.purchases()

    def living(self) -> list[Purchase]:
        return [one for one in self.purchases() if one.ended_at is None]

    def interrupt(self, id: str, *, is_announced: bool = True) -> None:
        """Preempt a spot instance: `faults.soft_off_s` after a notice in its metadata, or at once without one."""
        self._gce.interrupt(id, is_announced=is_announced)

    @property
    def holdings(self) -> Holdings:
        """Disks, addresses and firewall rules."""
        return self._gce.holdings

    @property
    def iam(self) -> Iam:
        """The project's accounts and roles."""
        return self._gce.iam

    def forget_requests(self) -> None:
        """Forget the ids of all requests, as Google does after an hour."""
        self._gce.forget_requests()

    def ask(self, http_method: str, path: str, **query: str) -> dict[str, Any]:
        """Answer a call without faults and authentication. `path` is relative to the project."""
        call = discovery.read(http_method, f"/compute/v1/projects/{PROJECT}/{path}", query, b"")
        return self._gce.answer(call)

    # ---- HTTP ----

    def serve(
        self, http_method: str, target: str, authorization: str, body: bytes
    ) -> tuple[int, dict[str, Any]] | None:
        """Answer a request with (status, body). None: the connection breaks."""
        url = urlsplit(target)
        if url.path == "/token":
            return 200, {"access_token": "token-of-the-fake", "expires_in": 3600, "token_type": "Bearer"}
        uses_rpc_errors = url.path.startswith("/v1/") or url.path.endswith("IamPolicy")
        api, handler = self._api(url.path)
        try:
            call = api.read(http_method, url.path, dict(parse_qsl(url.query)), body)
            self.calls[call.method] += 1
            self._authorize(authorization)
            if _use_up(self.faults.lost_requests, call.method):
                return None
            answer = handler(call)
            self._check(api.check_answer, call, answer)
            answer = google_field_masks.cut(answer, call.parameters.get("fields"))
            self.response_bytes[call.method] = max(self.response_bytes[call.method], len(json.dumps(answer)))
        except Invalid as invalid:
            return pubsub.error(invalid) if uses_rpc_errors else (invalid.status, _error(invalid))
        return None if _use_up(self.faults.lost_answers, call.method) else (200, answer)

    def _api(self, path: str) -> tuple[Any, Callable[[Call], dict[str, Any]]]:
        """(the API description for a path, the function that answers its calls)"""
        if path.startswith("/v1/services/"):
            return billing, lambda call: billing.answer(call, self.faults)
        return (pubsub, self.pubsub.answer) if "/subscriptions/" in path else (discovery, self._gce.answer)

    def _authorize(self, authorization: str) -> None:
        """Raises Invalid if a fault denies the call, or if its token is not valid."""
        reason = self.faults.deny
        if self.faults.throttle > 0:
            self.faults.throttle -= 1
            reason = "rateLimitExceeded"
        if reason is None and not _is_signed(authorization.removeprefix("Bearer ")):
            reason = "authError"
        if reason is not None:
            raise Invalid(DENIALS[reason][0], reason, DENIALS[reason][1])

    def _check(self, check: Callable[[Call, Any], None], call: Call, answer: dict[str, Any]) -> None:
        try:
            check(call, answer)
        except Invalid as wrong:
            self.wrong_answers.append(f"{call.method}: {wrong}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, gce: FakeGce) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gce = gce

    def handle_error(self, *_: Any) -> None:
        """Tests kill the daemon in the middle of a call: that is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        response = self.server.gce.serve(self.command, self.path, self.headers.get("Authorization", ""), body)
        if response is None:
            self.close_connection = True
            self.connection.close()
            return
        status, body_json = response
        content = json.dumps(body_json).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_PATCH = _serve

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""


def _is_signed(token: str) -> bool:
    """Whether a token is signed with the account's key, or was issued for such a token."""
    return token == "token-of-the-fake" or google_account.is_signed(token, PROJECT)


def _error(invalid: Invalid) -> dict[str, Any]:
    one = {"message": str(invalid), "domain": "global", "reason": invalid.reason}
    return {"error": {"code": invalid.status, "message": str(invalid), "errors": [one]}}


def _use_up(remaining: dict[str, int], method: str) -> bool:
    """Whether a call has the fault, of which one less remains then."""
    if remaining.get(method, 0) <= 0:
        return False
    remaining[method] -= 1
    return True
