"""A proxy that cannot run: what it says, and that its thread goes on."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.controller.api.serve.proxy_process import ProxyProcess, find_haproxy, listen
from perdure.controller.maintenance.serve.proxy_state import ProxySettings
from perdure.controller.runtime.security.certificates import self_signed
from support.helpers.timing import wait_until


@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")
def test_problem__has_the_words_of_haproxy(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)
    settings = ProxySettings(1, "model", listener.getsockname()[1], tls_key="no key", tls_cert="no certificate")
    process = ProxyProcess(find_haproxy() or "", settings, tmp_path, listener, tmp_path / "log")
    process.start()
    try:
        wait_until(lambda: "cannot be started" in process.problem)
        assert "unable to" in process.problem
        assert "endpoint.pem" in process.problem
    finally:
        process.stop()
        listener.close()


def test_proxy__whose_files_cannot_be_written_says_why_and_is_tried_again(tmp_path: Path) -> None:
    settings = ProxySettings(1, "model", 30001, tls_key="key", tls_cert="\ud800")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ProxyProcess("/bin/false", settings, tmp_path, listener, tmp_path / "log")
        proxy.start()
        try:
            wait_until(lambda: proxy.problem.startswith("its proxy cannot be started: 'utf-8' codec"), timeout_s=10)
            assert proxy._thread.is_alive()
        finally:
            proxy.stop()


def settings_with(port: int, name: str) -> ProxySettings:
    key, cert = self_signed((name,), 1_700_000_000.0)
    return ProxySettings(1, "model", port, token="t", tls_key=key.decode(), tls_cert=cert.decode())


def unauthorized(link: ssl.SSLSocket) -> bool:
    """Whether the proxy answers a request without its token."""
    link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return link.recv(4096).startswith(b"HTTP/1.1 401")


@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")
def test_renewal__changes_the_certificate_of_new_connections_alone(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    first, second = (settings_with(address[1], name) for name in ("first", "second"))
    process = ProxyProcess(find_haproxy() or "", first, tmp_path, listener, tmp_path / "log")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    process.start()
    try:
        wait_until(lambda: process.problem == "")
        pid = process.pid
        with context.wrap_socket(socket.create_connection(address)) as open_before:
            assert unauthorized(open_before)
            assert process.renew(second)
            assert ssl.get_server_certificate(address).strip() == second.tls_cert.strip()
            assert unauthorized(open_before), "it goes on"
        assert process.pid == pid
        assert not process.renew(replace(second, tls_cert=first.tls_cert)), "a key of another certificate"
        assert not process.renew(replace(first, token="other")), "more than the certificate"
        assert not process.renew(replace(first, tls_cert="", tls_key=""))
        assert process.settings == second
        assert ssl.get_server_certificate(address).strip() == second.tls_cert.strip()
    finally:
        process.stop()
        listener.close()
    assert "PRIVATE KEY" not in (tmp_path / "log").read_text()


@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")
def test_serve__has_a_replica_in_rotation_at_any_time(tmp_path: Path) -> None:
    """One replica comes as the other leaves, as in an update: requests would be held in between."""
    listener = listen("127.0.0.1", 0)
    settings = ProxySettings(1, "model", listener.getsockname()[1], token="t")
    process = ProxyProcess(find_haproxy() or "", settings, tmp_path, listener, tmp_path / "log")
    process.start()
    try:
        wait_until(lambda: process.problem == "")
        for slot in (0, 1, 0):
            process.serve({slot: 100})
        wait_until(lambda: (tmp_path / "log").read_text().count("is going DOWN") >= 2)
    finally:
        process.stop()
        listener.close()
    assert "no server available" not in (tmp_path / "log").read_text()
