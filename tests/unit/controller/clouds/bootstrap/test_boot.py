"""The first program of a machine, run as a process."""

from __future__ import annotations

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import Bootstrap
from perdure.controller.clouds.bootstrap.render import render_boot_program
from support.helpers.timing import scaled

AGENT = b"import os; print('session', os.getsid(0), flush=True)"


class AgentServer(http.server.BaseHTTPRequestHandler):
    """Serves the agent, as a controller does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(AGENT)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AgentServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("leads", "start"),
    [
        ("nothing", {}),
        ("group", {"process_group": 0}),  # a job of an interactive shell
        ("session", {"start_new_session": True}),  # a systemd unit, the first process of a container
    ],
)
def test_foreground__runs_the_agent_whatever_the_process_leads(
    tmp_path: Path, endpoint: str, leads: str, start: dict[str, Any]
) -> None:
    bootstrap = Bootstrap(endpoint, "token", {"agent": hashlib.sha256(AGENT).hexdigest()})
    own = {"PERDURE_STATE_DIR": str(tmp_path), "PERDURE_POWER_OFF": "echo powered off", "PERDURE_FOREGROUND": "1"}
    program = tmp_path / "boot.py"
    program.write_text(render_boot_program(bootstrap, 0, **own))
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **start
    )
    output, _ = process.communicate(timeout=scaled(30))
    session = os.getsid(0) if leads == "group" else process.pid  # the leader of a group cannot leave its session
    assert output.splitlines() == [f"session {session}", "powered off"]
    assert process.returncode == 0
