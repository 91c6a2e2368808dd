"""EC2's metadata service, version 2, and everything that it may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from perdure.agent.node_spec import NoticeSettings
from perdure.agent.notices.ec2_imds import NOTICE_S, ImdsV2, MetadataError
from perdure.agent.notices.notice import Notice
from perdure.agent.notices.poller import NoticePoller
from perdure.controller.runtime.clock import SystemClock

ACTION = "/latest/meta-data/spot/instance-action"
MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Imds(ThreadingHTTPServer):
    """Only the token number `valid` is accepted. `broken`: the status of every GET."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.documents: dict[str, bytes] = {}
        self.made = 0
        self.valid = 0
        self.broken: int | None = None
        self.hangs_up = False
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Imds

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert 1 <= int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
        self.server.made += 1
        self.server.valid = self.server.made
        self._answer(200, f"token-{self.server.made}".encode())

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.broken:
            self._answer(self.server.broken, b"")
        elif self.headers["X-aws-ec2-metadata-token"] != f"token-{self.server.valid}":
            self._answer(401, b"")
        elif self.path in self.server.documents:
            self._answer(200, self.server.documents[self.path])
        else:
            self._answer(404, b"not found")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.hangs_up

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def imds() -> Iterator[Imds]:
    server = Imds()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_interruption__is_none_while_nothing_is_announced(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    assert source.interruption() is None
    assert source.is_rebalance_recommended() is False
    assert imds.made == 1


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_interruption__has_action_and_deadline(imds: Imds, action: str) -> None:
    imds.documents[ACTION] = json.dumps({"action": action, "time": "2017-09-18T08:22:00Z"}).encode()
    assert ImdsV2(imds.endpoint).interruption() == (action, 1505722920.0)


def test_rebalance__is_recommended(imds: Imds) -> None:
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert ImdsV2(imds.endpoint).is_rebalance_recommended() is True


def test_token__is_renewed_when_expired(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    assert source.interruption() is None
    imds.valid = 99
    imds.documents[ACTION] = b'{"action": "stop", "time": "2017-09-18T08:22:00Z"}'
    assert source.interruption() == ("stop", 1505722920.0)
    assert imds.made == 2


def test_token__raises_when_every_token_is_refused(imds: Imds) -> None:
    imds.broken = 401
    with pytest.raises(MetadataError, match="refuses a new token"):
        ImdsV2(imds.endpoint).interruption()


def test_interruption__recovers_after_server_errors(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    imds.broken = 500
    with pytest.raises(MetadataError, match="500"):
        source.interruption()
    imds.broken = None
    assert source.interruption() is None


def test_connection__is_reopened_when_the_service_closes_it(imds: Imds) -> None:
    imds.hangs_up = True
    source = ImdsV2(imds.endpoint)
    for _ in range(3):
        assert source.interruption() is None


def test_interruption__raises_when_nobody_listens() -> None:
    with pytest.raises(MetadataError):
        ImdsV2("http://127.0.0.1:1").interruption()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"7"])
def test_interruption__raises_on_an_unreadable_answer(imds: Imds, body: bytes) -> None:
    imds.documents[ACTION] = body
    with pytest.raises(MetadataError):
        ImdsV2(imds.endpoint).interruption()


@pytest.mark.parametrize("time", ["", ', "time": "soon"', ', "time": 7', ', "time": null'])
def test_interruption__without_a_readable_time_has_the_usual_deadline(imds: Imds, time: str) -> None:
    imds.documents[ACTION] = f'{{"action": "terminate"{time}}}'.encode()
    source = ImdsV2(imds.endpoint)
    before = now()
    action, deadline = source.interruption() or ("", 0.0)
    assert action == "terminate"
    assert before + NOTICE_S <= deadline <= now() + NOTICE_S
    assert source.interruption() == (action, deadline), "it is the same notice"


def now() -> float:
    return SystemClock().now()


def scheduled(in_s: float, code: str = "system-reboot", state: str = "active") -> bytes:
    """As EC2 and amazon-ec2-metadata-mock write it."""
    begin = datetime.fromtimestamp(now() + in_s, UTC).strftime("%d %b %Y %H:%M:%S GMT")
    event = {"NotBefore": begin, "Code": code, "Description": "scheduled", "EventId": "instance-event-1"}
    return json.dumps([{**event, "NotAfter": begin, "State": state}]).encode()


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("system-reboot", "reboot"),
        ("instance-reboot", "reboot"),
        ("system-maintenance", "reboot"),
        ("instance-retirement", "stop"),
        ("instance-stop", "stop"),
    ],
)
def test_maintenance__is_a_reason_to_move_and_then_an_interruption(imds: Imds, code: str, action: str) -> None:
    imds.documents[MAINTENANCE] = scheduled(5 * 86400, code)
    source = ImdsV2(imds.endpoint)
    assert source.is_rebalance_recommended() is True
    assert source.interruption() is None
    imds.documents[MAINTENANCE] = scheduled(60, code)
    source = ImdsV2(imds.endpoint)
    assert source.is_rebalance_recommended() is True
    found, deadline = source.interruption() or ("", 0.0)
    assert found == action
    assert 55 <= deadline - now() <= 60


@pytest.mark.parametrize("body", [b"[]", scheduled(60, state="completed"), scheduled(60, state="canceled")])
def test_maintenance__that_is_over_means_nothing(imds: Imds, body: bytes) -> None:
    imds.documents[MAINTENANCE] = body
    source = ImdsV2(imds.endpoint)
    assert source.is_rebalance_recommended() is False
    assert source.interruption() is None


@pytest.mark.parametrize("body", [b"{}", b"nonsense", b"[7]"])
def test_maintenance__that_is_unreadable_hides_no_interruption(imds: Imds, body: bytes) -> None:
    imds.documents[MAINTENANCE] = body
    imds.documents[ACTION] = b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    poller = NoticePoller(
        NoticeSettings("imds-v2", imds.endpoint, 1.0), imds.endpoint, on_notice=lambda _: None, log=lambda _: None
    )
    assert poller.poll() == [Notice(1505722920.0, "terminate", "imds-v2")]


def test_poller__calls_back_once_per_notice(imds: Imds) -> None:
    notices: list[Notice] = []
    received = threading.Event()
    poller = NoticePoller(
        NoticeSettings("imds-v2", imds.endpoint, 0.01),
        imds.endpoint,
        on_notice=lambda notice: (notices.append(notice), received.set() if len(notices) == 2 else None),  # type: ignore[func-returns-value]
        log=lambda _: None,
    )
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert [n.action for n in poller.poll()] == ["rebalance"]
    imds.broken = 500
    poller.start()
    imds.documents[ACTION] = b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    imds.broken = None
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T09:00:00Z"}'
    while not notices:
        assert threading.Event().wait(0.01) is False
    asked = len(imds.asked)
    while len(imds.asked) < asked + 6:
        assert threading.Event().wait(0.01) is False
    poller.stop()
    assert notices == [Notice(1505722920.0, "terminate", "imds-v2")]
