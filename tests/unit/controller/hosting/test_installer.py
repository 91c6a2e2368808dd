"""The installer of a controller's machine: installs a bundle completely or changes nothing, and accepts it once."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from perdure.controller.hosting import bundle
from perdure.controller.hosting.installer import CannotInstall, install
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.listen import Certificate, ListenConfig
from perdure.controller.runtime.security.tls import load_tls
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.transport import connect
from support.helpers.timing import scaled

CONFIG = {"listen": {"host": "127.0.0.1", "tls": "auto"}}
Send = Callable[..., tuple[int, dict[str, str]]]


@pytest.mark.slow
def test_install__broken_bundle_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    valid = bundle.build_bundle(CONFIG, dependencies="host")
    path.write_bytes(valid)
    credentials = install(str(tmp_path / "home"), str(path))
    assert (tmp_path / "home" / "token").read_text().strip() == credentials["token"]
    for name in ("older", "oldest"):
        (tmp_path / "home/software" / name).mkdir()
        (tmp_path / "home/software" / name / "complete").touch()
    before = (os.readlink(tmp_path / "home/software/current"), (tmp_path / "home/config.yaml").read_text())
    for broken, why in (
        (bundle.build_bundle({"listen": {"prot": 1}}, dependencies="host"), "no such setting"),
        (without_file(valid, "perdure/controller/daemon.py"), "No module named"),
        (b"PK", "not a Perdure bundle"),
    ):
        path.write_bytes(broken)
        with pytest.raises(CannotInstall, match=why):
            install(str(tmp_path / "home"), str(path))
        after = (os.readlink(tmp_path / "home/software/current"), (tmp_path / "home/config.yaml").read_text())
        assert after == before
    assert (tmp_path / "home/software/older").exists()
    path.write_bytes(valid)
    install(str(tmp_path / "home"), str(path))
    remaining = {entry.name for entry in (tmp_path / "home/software").iterdir() if entry.is_dir()}
    assert remaining == {"current", before[0]}, "unused installations are removed"


def without_file(content: bytes, excluded: str) -> bytes:
    """The bundle without one file of its wheel."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        for name in old.namelist():
            entry = old.read(name)
            if name.endswith(".whl"):
                inner = io.BytesIO()
                with zipfile.ZipFile(io.BytesIO(entry)) as wheel, zipfile.ZipFile(inner, "w") as smaller:
                    for file in wheel.namelist():
                        if file != excluded:
                            smaller.writestr(file, wheel.read(file))
                entry = inner.getvalue()
            new.writestr(name, entry)
    return result.getvalue()


@pytest.fixture
def send(tmp_path: Path) -> Iterator[Send]:
    """Sends a body to a running installer and returns (status, response)."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = load_tls(ListenConfig(Certificate(cert, key, generated=True)), host="localhost", clock=ManualClock())
    assert tls is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = {
        "home": str(tmp_path / "home"), "host": "127.0.0.1", "port": str(port), "secret": "s3cret",
        "certificate": cert.read_text(), "key": key.read_text(),
    }  # fmt: skip
    program = tmp_path / "installer.py"
    program.write_text(bundle.render_installer(settings))
    installer = subprocess.Popen([sys.executable, "-I", program])

    def put(body: bytes, secret: str = "s3cret") -> tuple[int, dict[str, str]]:
        for _ in range(200):
            connection = connect(Endpoint(f"https://127.0.0.1:{port}", "", fingerprint=tls.fingerprint), timeout_s=60)
            try:
                connection.request("PUT", "/software", body, {"Authorization": f"Bearer {secret}"})
                response = connection.getresponse()
                return response.status, json.loads(response.read() or b"{}")
            except ConnectionRefusedError:  # it does not listen yet
                Event().wait(0.05)
            finally:
                connection.close()
        raise AssertionError("the installer does not listen")

    yield put
    installer.terminate()
    installer.wait(scaled(20))


@pytest.mark.slow
def test_installer__accepts_one_bundle_with_the_secret_and_starts_the_daemon(send: Send, tmp_path: Path) -> None:
    content = bundle.build_bundle({**CONFIG, "local": False}, dependencies="host")
    larger_than_socket_buffers = bytes(16 * 2**20)
    assert send(larger_than_socket_buffers, secret="wrong")[0] == 401
    status, response = send(b"junk")
    assert (status, "not a Perdure bundle" in response["error"]) == (400, True)
    assert not (tmp_path / "home" / "token").exists()
    status, response = send(content)
    assert (status, response["token"]) == (200, (tmp_path / "home" / "token").read_text().strip())
    published = tmp_path / "home" / "controller.json"
    for _ in range(300):
        if published.exists():
            break
        Event().wait(0.1)
    assert json.loads(published.read_text())["fingerprint"] == response["fingerprint"]
