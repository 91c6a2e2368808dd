"""What the thread of a proxy survives."""

from __future__ import annotations

import socket
from pathlib import Path

from perdure.controller.api.serve.proxy_process import ProxyProcess
from perdure.controller.maintenance.serve.proxy_state import ProxySettings
from support.helpers.timing import wait_until


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
