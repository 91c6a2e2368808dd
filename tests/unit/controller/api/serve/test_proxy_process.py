"""A proxy that cannot run: what it says, and that its thread goes on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from perdure.controller.api.serve.proxy_process import ProxyProcess, find_haproxy, listen
from perdure.controller.maintenance.serve.proxy_state import ProxySettings
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
