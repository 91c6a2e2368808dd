"""EC2's metadata service, version 2, with all that it may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.agent.imds import ImdsV2, MetadataError, epoch_seconds
from perdure.agent.notices import Notice, NoticeWatch
from perdure.agent.spec import NoticeSettings

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Imds(ThreadingHTTPServer):
    """Tokens are refused once `valid` moved on. `broken`: status of every GET."""

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

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def imds() -> Iterator[Imds]:
    server = Imds()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_nothing_is_announced(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    assert source.interruption() is None
    assert source.is_rebalance_recommended() is False
    assert imds.made == 1


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_interruption(imds: Imds, action: str) -> None:
    imds.documents[ACTION] = json.dumps({"action": action, "time": "2017-09-18T08:22:00Z"}).encode()
    assert ImdsV2(imds.endpoint).interruption() == (action, 1505722920.0)


def test_a_rebalance_recommendation(imds: Imds) -> None:
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert ImdsV2(imds.endpoint).is_rebalance_recommended() is True


def test_an_expired_token_is_renewed(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    assert source.interruption() is None
    imds.valid = 99
    imds.documents[ACTION] = b'{"action": "stop", "time": "2017-09-18T08:22:00Z"}'
    assert source.interruption() == ("stop", 1505722920.0)
    assert imds.made == 2


def test_a_service_that_refuses_every_token(imds: Imds) -> None:
    imds.broken = 401
    with pytest.raises(MetadataError, match="refuses"):
        ImdsV2(imds.endpoint).interruption()


def test_after_trouble_it_answers_again(imds: Imds) -> None:
    source = ImdsV2(imds.endpoint)
    imds.broken = 500
    with pytest.raises(MetadataError, match="500"):
        source.interruption()
    imds.broken = None
    assert source.interruption() is None


def test_a_kept_connection_that_was_closed_is_opened_again(imds: Imds) -> None:
    imds.hangs_up = True
    source = ImdsV2(imds.endpoint)
    for _ in range(3):
        assert source.interruption() is None


def test_nobody_listens() -> None:
    with pytest.raises(MetadataError):
        ImdsV2("http://127.0.0.1:1").interruption()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"action": "stop"}', b'{"action": "stop", "time": "soon"}'])
def test_what_can_not_be_read_is_asked_again(imds: Imds, body: bytes) -> None:
    imds.documents[ACTION] = body
    with pytest.raises(MetadataError):
        ImdsV2(imds.endpoint).interruption()


def test_fractions_of_seconds() -> None:
    assert epoch_seconds("2017-09-18T08:22:00.25Z") == 1505722920.25


def test_a_watch_tells_each_notice_once(imds: Imds) -> None:
    found: list[Notice] = []
    told = threading.Event()
    watch = NoticeWatch(
        NoticeSettings("imds-v2", imds.endpoint, 0.01),
        imds.endpoint,
        found=lambda notice: (found.append(notice), told.set() if len(found) == 2 else None),  # type: ignore[func-returns-value]
        log=lambda _: None,
    )
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert [n.action for n in watch.poll()] == ["rebalance"]
    imds.broken = 500
    watch.start()
    imds.documents[ACTION] = b'{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
    imds.broken = None
    imds.documents[REBALANCE] = b'{"noticeTime": "2020-10-27T09:00:00Z"}'
    while not found:
        assert threading.Event().wait(0.01) is False
    asked = len(imds.asked)
    while len(imds.asked) < asked + 6:
        assert threading.Event().wait(0.01) is False
    watch.stop()
    assert found == [Notice(1505722920.0, "terminate", "imds-v2")]


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ValueError, match="imds-v2"):
        NoticeWatch(NoticeSettings("oracle", "http://x", 1.0), "http://x", found=lambda _: None, log=lambda _: None)
