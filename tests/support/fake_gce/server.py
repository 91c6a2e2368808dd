"""The server: who calls is checked, what is said is checked, and it may go wrong on its way."""

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

import field_masks
import google_account
from fake_gce import billing, discovery, pubsub
from fake_gce.discovery import Call, Invalid
from fake_gce.faults import DENIALS, Faults
from fake_gce.gce import PROJECT, Gce
from fake_gce.holdings import Holdings
from fake_gce.iam import Iam
from fake_gce.pubsub import PubSub
from hardware import Machines
from ledger import Bought

REGIONS = ("us-central1", "us-east4")


class FakeGce:
    """See the package. `folder`: where machines live, None for none at all; `hidden`: what they do not see."""

    def __init__(self, folder: Path | None = None, *, hidden: Path | None = None, regions: tuple[str, ...] = REGIONS):
        self.faults = Faults()
        self.calls: Counter[str] = Counter()  # "instances.bulkInsert" → how often; throttled and denied ones too
        self.told_bytes: Counter[str] = Counter()  # method → the longest answer
        self.regions = regions
        self.settings: dict[str, Any] = {}  # more of the section in config.yaml
        self.wrong_answers: list[str] = []  # what Google could not have said: a mistake of this fake's
        self.pubsub = PubSub()
        machines = Machines("gcp", folder, hidden or folder) if folder else None
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
        """No machine is left behind."""
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
        """Its URL here, for `gcp.notice_queues`; `pubsub` knows it by what comes after `/v1/`."""
        return f"{self.url}/v1/projects/{PROJECT}/subscriptions/{name}"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials, and nothing of this computer's own that would disturb."""
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self._credentials), "NO_GCE_CHECK": "true"}

    # ---- for tests ----

    def bought(self) -> list[Bought]:
        """All instances that ever were, in order of launch, as they stand now."""
        return self._gce.bought()

    def living(self) -> list[Bought]:
        return [one for one in self.bought() if one.ended_at is None]

    def interrupt(self, id: str, *, is_told: bool = True) -> None:
        """Take a spot instance back: its metadata says so, and `faults.soft_off_s` later it is gone; at once if not."""
        self._gce.interrupt(id, is_told=is_told)

    @property
    def holdings(self) -> Holdings:
        """Disks, addresses and firewall rules."""
        return self._gce.holdings

    @property
    def iam(self) -> Iam:
        """The project's accounts and roles."""
        return self._gce.iam

    def forget_requests(self) -> None:
        """As Google does after an hour: a request's id means nothing from now on."""
        self._gce.forget_requests()

    def ask(self, http_method: str, path: str, **query: str) -> dict[str, Any]:
        """What Google would tell its owner, past all faults. `path`: below the project."""
        call = discovery.read(http_method, f"/compute/v1/projects/{PROJECT}/{path}", query, b"")
        return self._gce.answer(call)

    # ---- HTTP ----

    def serve(
        self, http_method: str, target: str, authorization: str, body: bytes
    ) -> tuple[int, dict[str, Any]] | None:
        """None: the connection breaks."""
        url = urlsplit(target)
        if url.path == "/token":
            return 200, {"access_token": "token-of-the-fake", "expires_in": 3600, "token_type": "Bearer"}
        is_newer = url.path.startswith("/v1/") or url.path.endswith("IamPolicy")  # another form of errors
        api, does = self._api(url.path)
        try:
            call = api.read(http_method, url.path, dict(parse_qsl(url.query)), body)
            self.calls[call.method] += 1
            self._deny(authorization)
            if _use_up(self.faults.lost_requests, call.method):
                return None
            answer = does(call)
            self._check(api.check_answer, call, answer)
            answer = field_masks.cut(answer, call.parameters.get("fields"))
            self.told_bytes[call.method] = max(self.told_bytes[call.method], len(json.dumps(answer)))
        except Invalid as invalid:
            return pubsub.error(invalid) if is_newer else (invalid.status, _error(invalid))
        return None if _use_up(self.faults.lost_answers, call.method) else (200, answer)

    def _api(self, path: str) -> tuple[Any, Callable[[Call], dict[str, Any]]]:
        """The document that speaks of it, and what answers."""
        if path.startswith("/v1/services/"):
            return billing, lambda call: billing.answer(call, self.faults)
        return (pubsub, self.pubsub.answer) if "/subscriptions/" in path else (discovery, self._gce.answer)

    def _deny(self, authorization: str) -> None:
        """Raises Invalid unless the caller is the account that was given."""
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
        """A daemon that is killed in the middle of a call is what this is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        told = self.server.gce.serve(self.command, self.path, self.headers.get("Authorization", ""), body)
        if told is None:
            self.close_connection = True
            self.connection.close()
            return
        content = json.dumps(told[1]).encode()
        self.send_response(told[0])
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_PATCH = _serve

    def log_message(self, *_: Any) -> None:
        """A test's output is about the test."""


def _is_signed(token: str) -> bool:
    """By the account's key, or a token that was given for that."""
    return token == "token-of-the-fake" or google_account.is_signed(token, PROJECT)


def _error(invalid: Invalid) -> dict[str, Any]:
    one = {"message": str(invalid), "domain": "global", "reason": invalid.reason}
    return {"error": {"code": invalid.status, "message": str(invalid), "errors": [one]}}


def _use_up(left: dict[str, int], method: str) -> bool:
    if left.get(method, 0) <= 0:
        return False
    left[method] -= 1
    return True
