"""What HAProxy is told: never the token itself, and only the replicas that get requests."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.api.serve.haproxy_config import render
from perdure.controller.api.serve.proxy_process import find_haproxy
from perdure.controller.maintenance.serve.proxy_state import ProxySettings

FOLDER = Path("/run/x")


def rendered(listener: int = 7, **more: Any) -> str:
    settings = ProxySettings(**{"service_id": 1, "name": "model", "port": 30001, "max_targets": 3, **more})
    return render(settings, FOLDER, FOLDER / "admin.sock", listener, {1: 128})


def test_render__has_a_digest_instead_of_the_token() -> None:
    text = rendered(token="abc")
    assert "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD" in text  # of FIPS 180
    assert "abc" not in text
    assert text.index("return status 401") < text.index("del-header authorization") < text.index("use_backend")


def test_render__passes_the_header_on_without_a_token() -> None:
    assert "authorization" not in rendered().lower().replace("# everybody", "")


def test_render__has_the_other_servers_in_maintenance() -> None:
    lines = [line.split() for line in rendered().splitlines() if " weight " in line]
    assert [(line[1], line[4], line[5:]) for line in lines] == [
        ("s0", "100", ["disabled"]),
        ("s1", "128", []),
        ("s2", "100", ["disabled"]),
    ]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "    balance leastconn"),
        ({"round_robin": True}, "    balance roundrobin"),
        ({"stream_timeout_s": 2.5}, "    timeout server 2500ms"),
        ({"tls_cert": "c", "tls_key": "k"}, "    bind fd@7 ssl crt /run/x/endpoint.pem alpn h2,http/1.1"),
    ],
)
def test_render__follows_the_settings(settings: dict[str, Any], line: str) -> None:
    assert line in rendered(**settings).splitlines()


@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")
def test_render__is_accepted_by_haproxy(tmp_path: Path) -> None:
    program = find_haproxy()
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = rendered(listener.fileno(), token="abc").replace(str(FOLDER), str(tmp_path))
        (tmp_path / "haproxy.cfg").write_text(text)
        command = [program, "-c", "-f", str(tmp_path / "haproxy.cfg")]
        done = subprocess.run(command, pass_fds=[listener.fileno()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert shutil.which(program)
