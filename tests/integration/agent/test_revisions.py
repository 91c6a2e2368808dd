"""A replica gets another version of its service on the same machine."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node

SERVER = """
import http.server, os, sys
print("serving", os.environ["WHAT"], flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = "trap '' TERM; echo begun; while true; do sleep 0.05; done"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def upload(controller: Controller, **files: str) -> dict[str, str]:
    """A workdir with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    controller.files[digest] = buffer.getvalue()
    return {"upload": digest}


@pytest.fixture
def port(controller: Controller) -> int:
    port = free_port()
    controller.spec["probe"] = {"path": "/", "port": port, "timeout_s": 5.0, "interval_s": 0.1}
    controller.directive.update(target="run", node_ips=["127.0.0.1"])
    return port


def is_ready(controller: Controller, revision: int) -> Any:
    return next((one for one in controller.readiness if one["ready"] and one["revision"] == revision), None)


def test_revision__replaces_program_and_files(controller: Controller, node: Node, port: int) -> None:
    run = f"python3 server.py {port}"
    controller.spec.update(run=run, env={"WHAT": "first"}, workdir=upload(controller, server=SERVER, old=""))
    node.start()
    controller.until(lambda: is_ready(controller, 0))
    workdir = node.home / "sky_workdir"
    (workdir / "cache").write_text("of the program")
    env = {"WHAT": "second"}
    controller.revise(setup="echo set up", env=env, workdir=upload(controller, server=SERVER, new=""))
    controller.until(lambda: is_ready(controller, 1))
    assert (controller.hellos[0]["revision"], controller.hellos[-1]["revision"]) == (0, 1)
    assert sorted(path.name for path in workdir.iterdir()) == ["cache", "new.py", "server.py"]
    controller.until_log(b"set up\nserving second\n")
    assert controller.log.startswith(b"serving first\n")
    assert len(node.workload()) > 0
    assert "ended" not in controller.phases()
    controller.direct("stop")
    assert node.wait_for_agent() == 0


@pytest.mark.parametrize("restarts", [1, 3])
def test_revision__goes_on_after_the_death_of_the_agent(
    controller: Controller, node: Node, port: int, restarts: int
) -> None:
    """It is killed while the program of the earlier revision does not want to end."""
    controller.spec.update(run=STUBBORN, drain_s=2.0)
    node.start()
    controller.until_log(b"begun\n")
    controller.revise(run=f"python3 -c '{SERVER}' {port}", env={"WHAT": "second"})
    node.until_file(node.state_dir / "stages/run/stop.json")
    for _ in range(restarts):
        node.kill_agent()
        node.start()
    controller.until(lambda: is_ready(controller, 1))
    controller.until_log(b"serving second\n")
    assert controller.log.count(b"another version") == 1
    assert not any("trap" in " ".join(one.cmdline()) for one in node.workload())


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"run": "echo no such model; exit 3"}, "run exited with code 3"),
        ({"run": "exit 0"}, "run has ended with code 0 before it was ready"),
        ({"setup": "exit 4"}, "setup exited with code 4"),
        ({"workdir": {"upload": "f" * 64}}, "fetching uploads/"),
    ],
)
def test_revision__that_cannot_start_keeps_the_machine(
    controller: Controller, node: Node, port: int, broken: dict[str, Any], why: str
) -> None:
    good = {"run": f"python3 -c '{SERVER}' {port}", "setup": None, "workdir": None, "env": {"WHAT": "good"}}
    controller.spec.update(good)
    node.start()
    controller.until(lambda: is_ready(controller, 0))
    controller.revise(**broken)
    ended = controller.until(lambda: next((one for one in controller.readiness if one["has_ended"]), None))
    assert (ended["ready"], ended["revision"]) == (False, 1)
    assert ended["message"].startswith(why)
    assert "ended" not in controller.phases()
    controller.readiness.clear()
    node.kill_agent()
    node.start()
    controller.until(lambda: any(one["has_ended"] for one in controller.readiness))
    controller.revise(**good)
    controller.until(lambda: is_ready(controller, 2))


def test_revision__that_was_ready_ends_as_any_other(controller: Controller, node: Node, port: int) -> None:
    controller.spec.update(run=STUBBORN, drain_s=0.2)
    node.start()
    controller.until_log(b"begun\n")
    stop = node.home / "stop"
    run = f"python3 -c '{SERVER}' {port} & until [ -e {stop} ]; do sleep 0.02; done; kill $!; exit 9"
    controller.revise(run=run, env={"WHAT": "x"})
    controller.until(lambda: is_ready(controller, 1))
    Path(stop).touch()
    assert controller.until_phase("ended")["exit_code"] == 9


def test_revision__gives_way_to_a_drain(controller: Controller, node: Node, port: int) -> None:
    controller.spec.update(run=f"python3 -c '{SERVER}' {port}", env={"WHAT": "x"}, drain_s=1.0)
    node.start()
    controller.until(lambda: is_ready(controller, 0))
    controller.revise(run="exit 3")
    controller.until(lambda: any(one["has_ended"] for one in controller.readiness))
    controller.direct("drain", reason="USER_CANCELLED")
    controller.until_phase("ended")
    controller.direct("stop")
    assert node.wait_for_agent() == 0
