"""Signatures, and the guard against addresses of private networks, with real servers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from perdure.controller.maintenance.notify import guarded_post, mail_channel
from perdure.controller.maintenance.notify.channel_protocol import Delivered, Deliverer, Message, NotDelivered
from perdure.controller.maintenance.notify.guarded_post import GuardedPost, _is_public
from perdure.controller.maintenance.notify.http_channels import SlackChannel, WebhookChannel, sign
from perdure.controller.maintenance.notify.mail_channel import MailChannel
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.notify_config import SmtpConfig
from support.fakes.webhook_receiver import WebhookReceiver
from support.helpers.timing import scaled

SECRET = b"k" * 32
MESSAGE = Message("evt_1", "job.failed", "Job 1 <failed>", "because & why", {"id": "evt_1", "type": "job.failed"})


def test_signature__has_the_value_of_the_specification() -> None:
    """The example of the Standard Webhooks specification."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == expected


def test_webhook__is_signed_and_carries_the_event() -> None:
    clock = ManualClock()
    with WebhookReceiver() as receiver:
        channel = WebhookChannel(GuardedPost(receiver.url, allow_private=True), SECRET, clock)
        assert channel.deliver(MESSAGE) == Delivered("200")
        (got,) = receiver.received
    assert got.body == MESSAGE.body
    assert got.headers["webhook-id"] == "evt_1"
    signed = b"evt_1." + str(int(clock.now())).encode() + b"." + got.raw
    digest = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{digest}"


def test_slack__gets_text_without_markup_of_others() -> None:
    with WebhookReceiver() as receiver:
        assert isinstance(SlackChannel(GuardedPost(receiver.url, True)).deliver(MESSAGE), Delivered)
        (got,) = receiver.received
    assert json.loads(got.raw) == {"text": "*Job 1 &lt;failed&gt;*\nbecause &amp; why"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((429, {"Retry-After": "17"}), NotDelivered("HTTP 429: ok", retry_after_s=17.0)),
        (503, NotDelivered("HTTP 503: ok")),
        (410, NotDelivered("HTTP 410: ok", is_final=True)),
        (
            (302, {"Location": "http://169.254.169.254/"}),
            NotDelivered("HTTP 302: redirects are not followed; configure the final URL"),
        ),
    ],
)
def test_answers__decide_what_follows(answer: int | tuple[int, dict[str, str]], expected: NotDelivered) -> None:
    with WebhookReceiver(lambda _: answer) as receiver:
        assert GuardedPost(receiver.url, allow_private=True).send(b"{}", {}) == expected


@pytest.mark.parametrize("kind", ["webhook", "mail"])
def test_slow_receiver__is_given_up_after_the_time_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends a byte before each timeout of the socket, and never ends."""
    for module in (guarded_post, mail_channel):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    given_up, stopped = threading.Event(), threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nx: " if kind == "webhook" else b"220-hello\r\n220 ")
            while not stopped.wait(0.05):
                connection.sendall(b"x")
        given_up.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=drip, args=[listener])
        thread.start()
        smtp = SmtpConfig("127.0.0.1", port, "perdure@example.org", security="none")
        channels: dict[str, Deliverer] = {
            "webhook": WebhookChannel(GuardedPost(f"http://127.0.0.1:{port}/", True), None, ManualClock()),
            "mail": MailChannel(smtp, ("a@example.org",), ManualClock()),
        }
        try:
            delivering = ThreadPoolExecutor(1).submit(channels[kind].deliver, MESSAGE)
            assert delivering.result(scaled(10)) == NotDelivered("timed out after 0.5 s")
            assert given_up.wait(scaled(10)), "the connection is closed"
        finally:
            stopped.set()
            thread.join()


def test_silent_receiver__is_given_up_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_post, "TIMEOUT_S", 0.3)
    with WebhookReceiver(lambda _: None) as receiver:
        result = GuardedPost(receiver.url, allow_private=True).send(b"{}", {})
    assert isinstance(result, NotDelivered)
    assert "timed out" in result.error


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]"]
)
def test_private_addresses__are_never_called(host: str) -> None:
    result = GuardedPost(f"http://{host}:9/").send(b"{}", {})
    assert isinstance(result, NotDelivered)
    assert "notify.allow_private_addresses" in result.error


@pytest.mark.parametrize(("address", "is_public"), [("8.8.8.8", True), ("100.64.0.1", False), ("224.0.0.1", False)])
def test_public_addresses__exclude_shared_and_multicast_ones(address: str, is_public: bool) -> None:
    assert _is_public(address) is is_public


def test_name__is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a private address after it was checked gains nothing."""
    with WebhookReceiver() as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])
        resolve, asked = socket.getaddrinfo, list[object]()

        def resolve_once(host: str, *more: Any, **options: Any) -> Any:
            if host != "rebound.example":
                return resolve(host, *more, **options)
            asked.append(host)
            return resolve("127.0.0.1", *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", resolve_once)
        monkeypatch.setattr(guarded_post, "_is_public", lambda _address: True)
        assert isinstance(GuardedPost(f"http://rebound.example:{port}/").send(b"{}", {}), Delivered)
        assert receiver.received[0].headers["host"] == f"rebound.example:{port}"
        assert asked == ["rebound.example"]


def test_certificate__is_checked_for_the_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    served = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            served.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        url = f"https://localhost:{port}/a?b=c"
        trusted = GuardedPost(url, True, tmp_path / "ca.pem").send(b"{}", {})
        assert trusted == Delivered("204")
        assert served == ["/a?b=c"]
        untrusted = GuardedPost(url, True).send(b"{}", {})
        assert isinstance(untrusted, NotDelivered)
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.error
        wrong_name = GuardedPost(f"https://127.0.0.1:{port}/", True, tmp_path / "ca.pem").send(b"{}", {})
        assert isinstance(wrong_name, NotDelivered)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_mail__names_the_server_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    smtp = SmtpConfig("127.0.0.1", port, "perdure@example.org", security="none")
    result = MailChannel(smtp, ("a@example.org",), ManualClock()).deliver(MESSAGE)
    assert isinstance(result, NotDelivered)
    assert result.error.startswith(f"127.0.0.1:{port}: ")
