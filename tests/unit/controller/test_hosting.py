"""What is sent to a controller's machine, and the door through which it goes in."""

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

from perdure.controller.clock import ManualClock
from perdure.controller.hosting import packing
from perdure.controller.hosting.caretaker import CannotInstall, install
from perdure.controller.listening import Certificate, Listening
from perdure.controller.tls import tls_of
from perdure.sdk.endpoint import Endpoint
from perdure.sdk.pinning import connect

CONFIG = {"listen": {"host": "127.0.0.1", "tls": "auto"}}
Push = Callable[..., tuple[int, dict[str, str]]]


def test_the_wheel_is_all_of_perdure_and_the_same_each_time(tmp_path: Path) -> None:
    name, content = packing.wheel()
    assert packing.wheel() == (name, content)
    (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-I", "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", "lib", name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for path in ("recovery/step.py", "agent/main.py", "checkpoint/py.typed", "controller/hosting/caretaker.py"):
        assert (tmp_path / "lib" / "perdure" / path).is_file()
    assert not list((tmp_path / "lib" / "perdure").glob("__init__.py"))


def test_what_can_not_be_installed_changes_nothing(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.write_bytes(packing.pack(CONFIG, dependencies="host"))
    said = install(str(tmp_path / "home"), str(pack))
    assert (tmp_path / "home" / "token").read_text().strip() == said["token"]
    for name in ("older", "oldest"):
        (tmp_path / "home/software" / name).mkdir()
        (tmp_path / "home/software" / name / "complete").touch()
    before = (os.readlink(tmp_path / "home/software/current"), (tmp_path / "home/config.yaml").read_text())
    for broken, why in (
        (packing.pack({"listen": {"prot": 1}}, dependencies="host"), "no such setting"),
        (without(pack.read_bytes(), "perdure/controller/daemon.py"), "No module named"),
        (b"PK", "no pack"),
    ):
        pack.write_bytes(broken)
        with pytest.raises(CannotInstall, match=why):
            install(str(tmp_path / "home"), str(pack))
        after = (os.readlink(tmp_path / "home/software/current"), (tmp_path / "home/config.yaml").read_text())
        assert after == before
    assert (tmp_path / "home/software/older").exists()
    pack.write_bytes(packing.pack(CONFIG, dependencies="host"))
    install(str(tmp_path / "home"), str(pack))
    left = {path.name for path in (tmp_path / "home/software").iterdir() if path.is_dir()}
    assert left == {"current", before[0]}, "nothing runs from the others"


def without(pack: bytes, left_out: str) -> bytes:
    """The pack with one file less in its wheel."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(pack)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".whl"):
                inner = io.BytesIO()
                with zipfile.ZipFile(io.BytesIO(content)) as wheel, zipfile.ZipFile(inner, "w") as less:
                    for file in wheel.namelist():
                        if file != left_out:
                            less.writestr(file, wheel.read(file))
                content = inner.getvalue()
            new.writestr(name, content)
    return made.getvalue()


@pytest.fixture
def push(tmp_path: Path) -> Iterator[Push]:
    """Sends to a caretaker that runs, on a port of its own; (status, what it said)."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tls = tls_of(Listening(Certificate(cert, key, made=True)), host="localhost", clock=ManualClock())
    assert tls is not None
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = {
        "home": str(tmp_path / "home"), "host": "127.0.0.1", "port": str(port), "secret": "s3cret",
        "certificate": cert.read_text(), "key": key.read_text(),
    }  # fmt: skip
    program = tmp_path / "caretaker.py"
    program.write_text(packing.first_program(settings))
    caretaker = subprocess.Popen([sys.executable, "-I", program])

    def send(body: bytes, secret: str = "s3cret") -> tuple[int, dict[str, str]]:
        for _ in range(200):
            link = connect(Endpoint(f"https://127.0.0.1:{port}", "", fingerprint=tls.fingerprint), timeout_s=60)
            try:
                link.request("PUT", "/software", body, {"Authorization": f"Bearer {secret}"})
                answer = link.getresponse()
                return answer.status, json.loads(answer.read() or b"{}")
            except ConnectionRefusedError:  # not there yet; whoever is refused later is to hear why
                Event().wait(0.05)
            finally:
                link.close()
        raise AssertionError("nobody is at the door")

    yield send
    caretaker.terminate()
    caretaker.wait(20)


def test_the_door_takes_one_pack_from_who_knows_the_secret_and_is_shut(push: Push, tmp_path: Path) -> None:
    pack = packing.pack({**CONFIG, "local": False}, dependencies="host")
    more_than_is_on_its_way_at_once = bytes(16 * 2**20)
    assert push(more_than_is_on_its_way_at_once, secret="wrong")[0] == 401
    status, said = push(b"junk")
    assert (status, "no pack of perdure" in said["error"]) == (400, True)
    assert not (tmp_path / "home" / "token").exists()
    status, said = push(pack)
    assert (status, said["token"]) == (200, (tmp_path / "home" / "token").read_text().strip())
    published = tmp_path / "home" / "controller.json"
    for _ in range(300):
        if published.exists():
            break
        Event().wait(0.1)
    assert json.loads(published.read_text())["fingerprint"] == said["fingerprint"]
