"""The metadata service, as a client of EC2 uses it."""

from __future__ import annotations

import json

import pytest

from perdure.controller.clouds.local.machine.metadata import HttpConnection, Metadata

VALUES = {"instance-id": "i-1", "placement/availability-zone": "local-east-a", "placement/region": "local-east"}
TOKEN, TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"


@pytest.fixture
def metadata() -> Metadata:
    return Metadata(VALUES)


def token(metadata: Metadata, ttl: str = "60", now: float = 0.0) -> str:
    status, body = metadata.respond("PUT", "/latest/api/token", {TTL: ttl}, now)
    assert status == 200
    return body


def get(metadata: Metadata, path: str, now: float = 1.0) -> tuple[int, str]:
    return metadata.respond("GET", f"/latest/meta-data/{path}", {TOKEN: token(metadata)}, now)


def test_respond__needs_a_token(metadata: Metadata) -> None:
    for headers in ({}, {TOKEN: ""}, {TOKEN: "forged"}):
        assert metadata.respond("GET", "/latest/meta-data/instance-id", headers, 0.0) == (401, "")


def test_token__expires(metadata: Metadata) -> None:
    headers = {TOKEN: token(metadata, "60", now=100.0)}
    assert metadata.respond("GET", "/latest/meta-data/instance-id", headers, 159.9) == (200, "i-1")
    assert metadata.respond("GET", "/latest/meta-data/instance-id", headers, 160.0)[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "1.5", "soon", "²"])
def test_token__needs_a_valid_time_to_live(metadata: Metadata, ttl: str) -> None:
    assert metadata.respond("PUT", "/latest/api/token", {TTL: ttl}, 0.0)[0] == 400
    assert metadata.respond("PUT", "/latest/api/token", {}, 0.0)[0] == 400


def test_respond__returns_values_and_listings(metadata: Metadata) -> None:
    assert get(metadata, "placement/availability-zone") == (200, "local-east-a")
    assert get(metadata, "") == (200, "instance-id\nplacement/")
    assert get(metadata, "placement/") == (200, "availability-zone\nregion")
    assert get(metadata, "nothing")[0] == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/latest/meta-data/instance-id"), ("GET", "/latest/api/token")])
def test_respond__rejects_other_methods(metadata: Metadata, method: str, path: str) -> None:
    assert metadata.respond(method, path, {TOKEN: token(metadata)}, 0.0)[0] == 405


def test_metadata__has_no_notice_until_it_is_marked(metadata: Metadata) -> None:
    assert get(metadata, "spot/instance-action")[0] == 404
    assert get(metadata, "events/recommendations/rebalance")[0] == 404
    metadata.mark_for_interruption(at=1505722800.5, deadline=1505722920.0)
    status, body = get(metadata, "spot/instance-action")
    assert (status, json.loads(body)) == (200, {"action": "terminate", "time": "2017-09-18T08:22:00Z"})
    assert json.loads(get(metadata, "events/recommendations/rebalance")[1]) == {"noticeTime": "2017-09-18T08:20:00Z"}


def test_http_connection__accepts_split_and_pipelined_requests(metadata: Metadata) -> None:
    talk = HttpConnection(metadata)
    put = f"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n{TTL.title()}: 60\r\n\r\nab".encode()
    for at in range(len(put) - 1):
        assert talk.feed(put[at : at + 1], 0.0) == b""
    answer = talk.feed(put[-1:], 0.0)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    secret = answer.rpartition(b"\r\n")[2].decode()
    get = f"GET /latest/meta-data/instance-id HTTP/1.1\r\n{TOKEN.upper()}: {secret}\r\n\r\n".encode()
    answers = talk.feed(get + get + b"GET /latest", 0.0)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.endswith(b"\r\n\r\ni-1")
    assert not talk.is_closed


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"401"),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"401"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b""),
        (b"x" * 20000, b""),
    ],
    ids=range(7),
)
def test_http_connection__closes_on_errors_and_request(metadata: Metadata, request_text: bytes, status: bytes) -> None:
    talk = HttpConnection(metadata)
    assert status in talk.feed(request_text, 0.0)[:12]
    assert talk.is_closed
