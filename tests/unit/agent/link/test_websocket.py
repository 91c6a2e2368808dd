"""The WebSocket client against another implementation."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.sync.server import ServerConnection, serve

from perdure.agent.link import websocket
from perdure.agent.link.websocket import Disconnected, Frame, UpgradeRefused, WebSocket, decode, encode, mask
from perdure.controller.runtime.clock import SystemClock
from support.helpers.timing import scaled


class Server:
    """Echoes messages; a few of them are commands."""

    def __init__(self, **options: Any) -> None:
        self.headers: dict[str, str] = {}
        self.pongs = threading.Event()
        self._server = serve(self._talk, "127.0.0.1", 0, max_size=1 << 24, compression=None, **options)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.headers = dict(connection.request.headers.raw_items())
        for message in connection:
            if message == "fragments":
                connection.send(iter(["one ", "two ", "three"]))
            elif message == "ping":
                connection.ping(b"are you there").wait(scaled(10))
                self.pongs.set()
            elif message == "goodbye":
                connection.close(1011, "enough")
            else:
                connection.send(message)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def ws(server: Server) -> Iterator[WebSocket]:
    ws = WebSocket.connect(f"http://127.0.0.1:{server.port}/path", {"Authorization": "Bearer x"})
    yield ws
    ws.close()


def test_connect__sends_the_headers(server: Server, ws: WebSocket) -> None:
    ws.send_text("x")
    assert ws.receive(5) == "x"
    assert server.headers["Authorization"] == "Bearer x"


@pytest.mark.parametrize("size", [0, 1, 4, 5, 125, 126, 65535, 65536, 262_144, 1_000_003])
def test_messages__of_every_size_survive(ws: WebSocket, size: int) -> None:
    payload = os.urandom(size)
    ws.send_binary(payload)
    assert ws.receive(5) == payload


def test_receive__joins_fragments(ws: WebSocket) -> None:
    ws.send_text("grüße")
    assert ws.receive(5) == "grüße"
    ws.send_text("fragments")
    assert ws.receive(5) == "one two three"


def test_ping__works_both_ways(server: Server, ws: WebSocket) -> None:
    ws.send_text("ping")
    ws.ping()
    before = ws.last_received
    while not server.pongs.is_set():
        assert ws.receive(0.05) is None
    assert ws.last_received > before


def test_receive__times_out(ws: WebSocket) -> None:
    began = time.monotonic()
    assert ws.receive(0.05) is None
    assert 0.04 < time.monotonic() - began < 10


def test_receive__ends_at_a_wake(ws: WebSocket) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"!")
    assert ws.receive(60, wake=read_end) is None
    ws.send_text("x")
    os.read(read_end, 1)
    assert ws.receive(60, wake=read_end) == "x"


def test_receive__raises_when_the_server_closes(ws: WebSocket) -> None:
    ws.send_text("goodbye")
    with pytest.raises(Disconnected, match="1011 enough"):
        ws.receive(5)


def test_abort__reaches_every_thread(ws: WebSocket) -> None:
    ws.abort()
    with pytest.raises(Disconnected):
        ws.receive(5)
    with pytest.raises(Disconnected):
        ws.send_text("x")


def test_send__fails_after_close(ws: WebSocket) -> None:
    ws.close()
    with pytest.raises(Disconnected):
        ws.send_text("x")


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.SERVICE_UNAVAILABLE])
def test_connect__raises_on_a_refused_upgrade(status: HTTPStatus) -> None:
    server = Server(process_request=lambda connection, request: connection.respond(status, "no"))
    try:
        with pytest.raises(UpgradeRefused) as refused:
            WebSocket.connect(f"ws://127.0.0.1:{server.port}/", {})
        assert refused.value.status == status
    finally:
        server.close()


def test_connect__raises_when_nobody_listens() -> None:
    with pytest.raises(OSError, match="refused"):
        WebSocket.connect("ws://127.0.0.1:1/", {})


def test_connect__raises_on_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 smtp.example ESMTP\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises((Disconnected, UpgradeRefused)):
            WebSocket.connect(f"ws://127.0.0.1:{listener.getsockname()[1]}/", {})


def test_tls__works_in_both_directions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread sends while another receives, with full buffers both ways."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    server = Server(ssl=context)
    try:
        ws = WebSocket.connect(f"https://127.0.0.1:{server.port}/", {})
        payloads = [os.urandom(250_000) for _ in range(40)]
        sender = threading.Thread(target=lambda: [ws.send_binary(payload) for payload in payloads])
        sender.start()
        assert [ws.receive(20) for _ in payloads] == payloads
        sender.join()
        ws.close()
    finally:
        server.close()


def test_tls__rejects_an_unknown_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    server = Server(ssl=context)
    try:
        with pytest.raises(ssl.SSLError):
            WebSocket.connect(f"https://127.0.0.1:{server.port}/", {})
    finally:
        server.close()


def certificate(folder: Path) -> str:
    """A self-signed certificate for 127.0.0.1 with its key in `both.pem`, alone in `cert.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.fromtimestamp(SystemClock().now(), UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "cert.pem").write_bytes(public)
    (folder / "both.pem").write_bytes(public + secret)
    return str(folder / "both.pem")


@pytest.mark.parametrize("size", range(9))
def test_mask__is_xor_with_the_repeated_key(size: int) -> None:
    payload, key = os.urandom(size), b"\x01\x02\x03\x04"
    assert mask(payload, key) == bytes(byte ^ key[i % 4] for i, byte in enumerate(payload))
    assert mask(mask(payload, key), key) == payload


def test_mask__is_fast_for_a_full_log_frame() -> None:
    payload = os.urandom(256 * 1024)
    best = min(_time(lambda: encode(websocket.BINARY, payload)) for _ in range(10))
    assert best < 0.01  # a loop over the bytes takes 20 ms and more


def _time(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_decode__returns_whole_frames_only() -> None:
    frame = b"\x82\x7e\x01\x00" + b"x" * 256
    for cut in range(len(frame)):
        buffer = bytearray(frame[:cut])
        assert decode(buffer) is None
        assert bytes(buffer) == frame[:cut]
    buffer = bytearray(frame + b"\x81")
    assert decode(buffer) == Frame(True, websocket.BINARY, b"x" * 256)
    assert bytes(buffer) == b"\x81"


@pytest.mark.parametrize("nonsense", [b"\xc2\x01x", b"\x82\x81xxxxx", b"\x82\x7f" + b"\xff" * 8])
def test_decode__rejects_malformed_frames(nonsense: bytes) -> None:
    with pytest.raises(Disconnected):
        decode(bytearray(nonsense))
