"""Finding the controller, and starting the embedded one exactly once."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.controller.runtime import endpoint_file
from perdure.sdk.connection import discovery, endpoint, hosted_controller
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint, NoController
from perdure.sdk.connection.start_lock import StartLock
from perdure.sdk.connection.transport import connect
from support.helpers.timing import scaled
from unit.sdk.contract_server import Controller

ENSURE = "from perdure.sdk.connection import discovery; e = discovery.ensure(); print(e.url, e.pid, e.token)"


def ensure_in_process(environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=scaled(60))
    return process.returncode, out, err


def test_find__uses_the_environment(tmp_path: Path) -> None:
    named = {"PERDURE_ENDPOINT": "https://h.example.org/", "PERDURE_HOME": str(tmp_path)}
    (tmp_path / "t").write_text("from-a-file\n")
    assert discovery.find(named | {"PERDURE_TOKEN_FILE": str(tmp_path / "t")}).token == "from-a-file"
    discovered = discovery.ensure(named | {"PERDURE_TOKEN": "given"})
    assert (discovered.url, discovered.token, discovered.home) == ("https://h.example.org", "given", None)
    with pytest.raises(NoController, match="is not a URL"):
        discovery.find({"PERDURE_ENDPOINT": "localhost:8000", "PERDURE_TOKEN": "t"})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:99999", "is not a URL: Port out of range"),
        ("http://127.0.0.1:x", "is not a URL: Port could not be cast"),
        ("http://[::1", "is not a URL: Invalid IPv6 URL"),
        ("https://:8443", "names no host"),
        ("https://h:0", "names no host, or port 0"),
        ("http://u:sesame@127.0.0.1:1", "holds a user or a password"),
        ("http://sesame@[::1", "holds a user or a password"),
    ],
)
def test_find__rejects_an_invalid_url(url: str, message: str) -> None:
    with pytest.raises(NoController, match=message) as caught:
        discovery.find({"PERDURE_ENDPOINT": url, "PERDURE_TOKEN": "t"})
    assert (caught.value.where, "sesame" in str(caught.value)) == ("PERDURE_ENDPOINT", False)


@pytest.mark.parametrize("content", [b"", b"two words", b"two\nlines", b"\xff\xfe", "schl\u00fcssel".encode()])
def test_find__rejects_what_is_no_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    named = {"PERDURE_ENDPOINT": "https://h", "PERDURE_TOKEN_FILE": str(tmp_path / "t")}
    with pytest.raises(NoController) as caught:
        discovery.find(named)
    assert caught.value.where == "PERDURE_TOKEN_FILE"
    assert not content or content.decode("latin-1") not in str(caught.value)


HOME_TOKEN = "the-token-of-the-home"


class Eavesdropper(http.server.BaseHTTPRequestHandler):
    """Answers every request like a healthy controller. The server's `heard` has all Authorization headers."""

    def do_GET(self) -> None:
        self.server.heard.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b'{"jobs": {} }')

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def eavesdropper() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Eavesdropper) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_find__never_sends_the_homes_token_to_another_endpoint(
    tmp_path: Path, eavesdropper: http.server.ThreadingHTTPServer
) -> None:
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(HOME_TOKEN)
    environ = {"PERDURE_ENDPOINT": f"http://127.0.0.1:{eavesdropper.server_port}", "PERDURE_HOME": str(tmp_path)}
    with pytest.raises(NoController, match="PERDURE_TOKEN") as caught:
        Client(discovery.ensure(environ)).controller()
    assert str(tmp_path) in str(caught.value)
    assert eavesdropper.heard == []
    Client(discovery.ensure(environ | {"PERDURE_TOKEN": "given"})).controller()
    assert eavesdropper.heard == ["Bearer given"], "the listener sees tokens that are sent"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to start a listener as another user")
@pytest.mark.parametrize("as_user", [0, 65534])
def test_running__sends_no_token_to_the_process_of_another_user(tmp_path: Path, as_user: int) -> None:
    """It took the port of a controller that died without removing its record."""
    home, heard = tmp_path / "home", tmp_path / "heard"
    home.mkdir(mode=0o700)
    (home / "token").touch(0o600)
    (home / "token").write_text(HOME_TOKEN)
    with open(heard, "ab") as log:
        stranger = subprocess.Popen([sys.executable, "-c", STRANGER, str(as_user)], stdout=subprocess.PIPE, stderr=log)
    with stranger:
        try:
            port = int(stranger.stdout.readline())
            (home / "controller.json").write_text(json.dumps({"endpoint": f"http://127.0.0.1:{port}", "pid": 0}))
            discovered = discovery.find({"PERDURE_HOME": str(home)})
        finally:
            stranger.kill()
    assert "GET /healthz" in heard.read_text(), "the stranger did answer"
    assert (HOME_TOKEN in heard.read_text(), discovered is not None) == (
        (True, True) if as_user == 0 else (False, False)
    )


STRANGER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    client = server.accept()[0]
    print(client.recv(65536), file=sys.stderr, flush=True)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    client.close()
"""


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost:1", True),
        ("https://192.0.2.1:1", True),
        ("http://192.0.2.1:1", False),
        ("http://controller.example:1", False),
        ("http://127.0.0.1.example:1", False),
        ("http://127.0.0.1@controller.example:1", False),
    ],
)
def test_connect__never_carries_a_token_as_plain_text(url: str, is_sent: bool) -> None:
    """Whatever names the endpoint: also a record in a home that several computers share."""
    if is_sent:
        connect(Endpoint(url, "token"), timeout_s=1)
    else:
        with pytest.raises(NoController, match="as plain text"):
            connect(Endpoint(url, "token"), timeout_s=1)
    connect(Endpoint(url, ""), timeout_s=1)


def test_find__starts_nothing(tmp_path: Path) -> None:
    assert discovery.find({"PERDURE_HOME": str(tmp_path / "home")}) is None
    assert not (tmp_path / "home").exists()


def test_ensure__starts_the_controller_once(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    code, out, err = finished(ensure_in_process(environ))
    assert code == 0, err
    url, pid, token = out.split()
    assert token == "user-token"
    assert os.getsid(int(pid)) == int(pid), "it has its own session, so closing a terminal does not end it"
    assert os.readlink(f"/proc/{pid}/cwd") == str(home)
    assert finished(ensure_in_process(environ))[1] == out
    discovered = discovery.find(environ)
    assert discovered.url == url
    assert discovery.recorded_pid(home) == int(pid)
    assert Client(discovered).controller()["pid"] == int(pid)
    assert (home.stat().st_mode & 0o777) == 0o700


def test_ensure__concurrent_calls_start_one_controller(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    results = [finished(process) for process in [ensure_in_process(environ) for _ in range(4)]]
    assert {code for code, _, _ in results} == {0}, results
    assert len({out for _, out, _ in results}) == 1
    assert len((home / "starts").read_text().split()) == 1


def test_ensure__replaces_the_record_of_a_dead_process(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    home.mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    (home / "controller.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:1", "pid": ended.pid}))
    code, out, err = finished(ensure_in_process(environ))
    assert code == 0, err
    assert int(out.split()[1]) != ended.pid


@pytest.mark.parametrize("record", ["", "not json", "[]", '{"endpoint": 5, "pid": "x"}'])
def test_find__ignores_a_broken_record(tmp_path: Path, record: str) -> None:
    (tmp_path / "controller.json").write_text(record)
    assert discovery.find({"PERDURE_HOME": str(tmp_path)}) is None
    assert discovery.recorded_pid(tmp_path) is None


def test_recorded_pid__ignores_another_process(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:1", "pid": os.getpid()}))
    assert discovery.recorded_pid(tmp_path) is None


def test_ensure__shows_the_output_of_a_failed_start(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    home.mkdir()
    (home / "broken").touch()
    (home / "controller.stderr.log").write_text("of an earlier one\n")
    code, _, err = finished(ensure_in_process(environ))
    assert code != 0
    assert "ended with exit code 1 while it started" in err
    assert "the database is of a newer version" in err
    assert str(home / "controller.stderr.log") in err
    assert "of an earlier one" not in err


def test_ensure__reports_a_missing_extra(tmp_path: Path) -> None:
    """Runs a Python without the daemon's packages: site-packages are hidden, and only the SDK is on the path."""
    import click
    import yaml

    import perdure.sdk

    for package in (click, yaml):
        name = package.__name__
        (tmp_path / name).symlink_to(os.path.dirname(package.__file__))
    roots = [os.path.dirname(os.path.dirname(perdure.sdk.__path__[0])), os.path.join(_repository(), "recovery")]
    environ = {"PYTHONPATH": os.pathsep.join([*roots, str(tmp_path)]), "PERDURE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-S", "-c", ENSURE]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert "the controller is not installed on this computer" in done.stderr
    assert "pip install '.[controller]'" in done.stderr
    assert not (tmp_path / "home").exists()


def test_find__rejects_a_token_that_others_can_read(tmp_path: Path, controller: Controller) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "controller.json").write_text(json.dumps({"endpoint": controller.url, "pid": 1}))
    (home / "token").write_text("user-token")
    (home / "token").chmod(0o640)
    with pytest.raises(NoController) as caught:
        discovery.find({"PERDURE_HOME": str(home)})
    assert "mode 0640" in str(caught.value)
    assert f"chmod 600 {home / 'token'}" in str(caught.value)
    (home / "token").chmod(0o600)
    assert discovery.find({"PERDURE_HOME": str(home)}).token == "user-token"


def test_find__reads_the_token_from_a_keyring_elsewhere(tmp_path: Path, controller: Controller) -> None:
    home, keyring = tmp_path / "home", tmp_path / "keyring"
    home.mkdir()
    keyring.mkdir()
    (keyring / "token").touch(0o600)
    (keyring / "token").write_text("user-token")
    endpoint_file.publish(home, controller.url, None, keyring)
    assert discovery.find({"PERDURE_HOME": str(home)}).token == "user-token"


def test_stderr_tail__returns_the_last_lines(tmp_path: Path) -> None:
    assert discovery.stderr_tail(tmp_path) == ""
    (tmp_path / discovery.STDERR_LOG).write_text("".join(f"line {number}\n" for number in range(50_000)))
    assert discovery.stderr_tail(tmp_path, 2) == "line 49998\nline 49999"


def _repository() -> str:
    import perdure.recovery

    return os.path.dirname(os.path.dirname(os.path.dirname(perdure.recovery.__path__[0])))


def test_find__prefers_the_hosted_controller_to_the_embedded(tmp_path: Path) -> None:
    up = hosted_controller.Hosted(
        hosted_controller.UP, "hosting-1", "local", 8443, url="https://192.0.2.1:8443", token="t", fingerprint="f"
    )
    hosted_controller.save(tmp_path, up)
    discovered = discovery.find({"PERDURE_HOME": str(tmp_path)})
    assert (discovered.url, discovered.token, discovered.fingerprint, discovered.home) == (
        "https://192.0.2.1:8443",
        "t",
        "f",
        None,
    )
    environ = {"PERDURE_HOME": str(tmp_path), "PERDURE_ENDPOINT": "http://127.0.0.1:1", "PERDURE_TOKEN": "x"}
    assert discovery.find(environ).url == "http://127.0.0.1:1"
    hosted_controller.save(tmp_path, replace(up, stage=hosted_controller.DOWN))
    assert discovery.find({"PERDURE_HOME": str(tmp_path)}) is None
    (tmp_path / hosted_controller.FILE).chmod(0o644)
    with pytest.raises(endpoint.NoController, match="others may read"):
        discovery.find({"PERDURE_HOME": str(tmp_path)})
    (tmp_path / hosted_controller.FILE).chmod(0o600)
    (tmp_path / hosted_controller.FILE).write_text("{")
    with pytest.raises(endpoint.NoController, match="restore it from a backup"):
        discovery.find({"PERDURE_HOME": str(tmp_path)})


def test_restart_if_embedded__awaits_another_command_that_is_starting_it(
    tmp_path: Path, controller: Controller
) -> None:
    """The starter removes the dead controller's record, which must not look like a controller stopped on purpose."""
    outcome = []
    waiting = threading.Thread(target=lambda: outcome.append(discovery.restart_if_embedded(tmp_path)))
    with StartLock(tmp_path).try_acquire() as lock:
        lock.record()
        waiting.start()
        waiting.join(timeout=0.2)
        assert waiting.is_alive(), "it waits for the starter's lock"
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text("user-token")
        (tmp_path / "controller.json").write_text(json.dumps({"endpoint": controller.url, "pid": 0}))
        waiting.join(timeout=scaled(60))
    assert [endpoint.url for endpoint in outcome] == [controller.url]


def test_restart_if_embedded__ignores_a_stopped_controller(tmp_path: Path) -> None:
    with StartLock(tmp_path).try_acquire() as lock:
        lock.record()
    assert discovery.restart_if_embedded(tmp_path) is None


def test_restart_if_embedded__ignores_a_lock_that_it_may_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str, _flags: int, _mode: int = 0o777) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "controller.start.lock").touch()
    monkeypatch.setattr(os, "open", refuse)
    assert discovery.restart_if_embedded(tmp_path) is None


def test_home_dir__refuses_an_empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`~` would be the root of the disk."""
    monkeypatch.setenv("HOME", "")
    with pytest.raises(NoController, match="HOME is empty"):
        endpoint.home_dir({})
    assert endpoint.home_dir({"PERDURE_HOME": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert endpoint.home_dir({}) == tmp_path / ".perdure"
