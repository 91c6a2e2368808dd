"""The first program of a machine, run as a process."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import Bootstrap
from perdure.controller.clouds.bootstrap.render import RankSource, render_agent_unit, render_boot_program
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


COMMAND = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
[ "$1" != is-system-running ] || echo "${STATE:-running}"
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`systemctl` and `shutdown` first on PATH, and the file of their calls."""
    folder, calls = tmp_path / "commands", tmp_path / "calls"
    folder.mkdir()
    for name in ("systemctl", "shutdown"):
        (folder / name).write_text(COMMAND)
        (folder / name).chmod(0o755)
    calls.touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    return calls


def run_program(folder: Path, endpoint: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the program as the unit does."""
    bootstrap = Bootstrap(endpoint, "token", {"agent": hashlib.sha256(AGENT).hexdigest()})
    program = folder / "boot.py"
    program.write_text(render_boot_program(bootstrap, 0, PERDURE_STATE_DIR=str(folder)))
    return subprocess.run(
        [sys.executable, str(program), *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )


def test_agent_of_a_unit__replaces_the_program(tmp_path: Path, endpoint: str) -> None:
    done = run_program(tmp_path, endpoint, "agent")
    assert (done.returncode, done.stdout.split()[0]) == (0, "session"), done


def test_agent_of_a_unit__is_started_again_without_a_controller(tmp_path: Path, endpoint: str) -> None:
    run_program(tmp_path, endpoint, "agent")
    done = run_program(tmp_path, "http://127.0.0.1:1", "agent")
    assert (done.returncode, done.stdout.split()[0]) == (0, "session"), done


@pytest.mark.parametrize(
    ("result", "state", "powers_off"),
    [
        ("success", "running", True),  # the agent is done
        ("success", "degraded", True),
        ("success", "stopping", False),  # a reboot must not become a power-off
        ("signal", "running", False),  # the agent was killed: systemd starts it again
        ("exit-code", "running", False),
    ],
)
def test_stopped_unit__powers_the_machine_off_once_the_agent_is_done(
    tmp_path: Path, commands: Path, endpoint: str, result: str, state: str, powers_off: bool
) -> None:
    run_program(tmp_path, endpoint, "stopped", SERVICE_RESULT=result, STATE=state)
    assert ("shutdown -h now" in commands.read_text().splitlines()) is powers_off


def test_unit__is_started_where_systemd_runs(
    tmp_path: Path, commands: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot tests do this on a real systemd."""
    program, units = tmp_path / "user-data", tmp_path / "system"
    units.mkdir()
    bootstrap = Bootstrap(endpoint, "token", {"agent": "ab" * 32})
    program.write_text(render_boot_program(bootstrap, 0))
    boot = ModuleType("boot")
    boot.__file__ = str(program)
    exec(compile(program.read_text(), str(program), "exec"), boot.__dict__)
    monkeypatch.setattr(boot, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(boot, "UNIT_DIR", str(units))
    monkeypatch.setattr(sys, "argv", ["boot.py"])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    mask = os.umask(0o022)
    try:
        boot.main()
    finally:
        os.umask(mask)
    assert commands.read_text().splitlines() == [
        "systemctl daemon-reload",
        "systemctl start --no-block perdure-agent.service",
    ]
    assert (units / "perdure-agent.service").read_text() == render_agent_unit()
    copy = tmp_path / "run" / "boot.py"
    assert copy.read_text() == program.read_text()
    assert copy.stat().st_mode & 0o077 == 0, "it holds the token"


PER_BOOT = "/var/lib/cloud/scripts/per-boot/perdure"


@pytest.mark.parametrize("encode", [bytes, base64.b64encode], ids=["as sent", "base64"])
def test_machine_that_is_started_again__runs_the_user_data_that_it_has_then(
    tmp_path: Path, endpoint: str, encode: Callable[[bytes], bytes]
) -> None:
    asked: list[str] = []

    class MetadataServer(AgentServer):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(encode(b"#!/usr/bin/env python3\nprint('the second boot')\n"))

    bootstrap = Bootstrap(endpoint, "token", {"agent": hashlib.sha256(AGENT).hexdigest()})
    own = {"PERDURE_STATE_DIR": str(tmp_path), "PERDURE_POWER_OFF": "true", "PERDURE_FOREGROUND": "1"}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), MetadataServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        source = RankSource(f"http://127.0.0.1:{server.server_port}", "/user-data?api-version=1")
        text = render_boot_program(bootstrap, 0, user_data=source, **own)
        moved = text.replace(PER_BOOT, str(tmp_path / "cloud" / "perdure")).replace(
            "/run/perdure", str(tmp_path / "run")
        )
        (tmp_path / "user-data").write_text(moved)
        run = partial(subprocess.run, stdout=subprocess.PIPE, text=True, check=True, timeout=scaled(30))
        assert run([sys.executable, str(tmp_path / "user-data")]).stdout.startswith("session ")
        assert asked == [], "the first boot has its user data"
        assert run([str(tmp_path / "cloud" / "perdure")]).stdout == "the second boot\n"
        server.shutdown()
        thread.join()
    assert asked == ["/user-data?api-version=1"]


def test_machine_that_is_never_stopped__leaves_no_script_for_later_boots(tmp_path: Path) -> None:
    text = render_boot_program(Bootstrap("http://127.0.0.1:1", "token", {"agent": ""}), 0)
    assert 'PERDURE_USER_DATA_FROM":' not in text
