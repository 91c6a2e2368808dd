"""A git workdir is cloned with the token of its URL, which no argument list shows and the clone does not store."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from perdure.agent.storage.fetch import Fetcher, FetchFailed

USER, PASSWORD = "someone", "hunter2/with:odd@signs"
URL_PASSWORD = "hunter2%2Fwith:odd%40signs"


class Guarded(SimpleHTTPRequestHandler):
    """Serves a bare repository to callers with the password, and records the arguments of every process."""

    shown: list[bytes] = []  # noqa: RUF012 (one for all requests)

    def do_GET(self) -> None:
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            try:
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"hunter2" in arguments:
                self.shown.append(arguments)
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {expected}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """`host:port` of a server that holds /x.git."""
    (tmp_path / "work").mkdir()
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    for words in (
        ("init", "-q", "-b", "main", "."), ("config", "user.email", "a@b"), ("config", "user.name", "a"),
        ("commit", "-q", "--allow-empty", "-m", "first"), ("branch", "other"),
        ("clone", "-q", "--bare", ".", "../x.git"), ("-C", "../x.git", "update-server-info"),
    ):  # fmt: skip
        subprocess.run(["git", *words], cwd=tmp_path / "work", check=True, env=environ)
    Guarded.shown.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Guarded, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def clone(url: str, ref: str | None, tmp_path: Path) -> Path:
    environ = {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    fetcher = Fetcher(None, tmp_path / "state", artifacts_dir=None, environ=environ, log=lambda _: None)  # type: ignore[arg-type]
    fetcher._clone(url, ref, tmp_path / "home" / "sky_workdir")
    return tmp_path / "home" / "sky_workdir"


def test_clone__of_a_private_repository_hides_its_token(repository: str, tmp_path: Path) -> None:
    workdir = clone(f"http://{USER}:{URL_PASSWORD}@{repository}/x.git", "other", tmp_path)
    assert (workdir / ".git" / "HEAD").read_text() == "ref: refs/heads/other\n"
    assert Guarded.shown == []
    kept = b"".join(path.read_bytes() for path in workdir.rglob("*") if path.is_file())
    assert b"hunter2" not in kept


def test_clone__error_does_not_contain_a_wrong_token(repository: str, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as failed:
        clone(f"http://{USER}:hunter2-wrong@{repository}/x.git", None, tmp_path)
    assert "git clone failed" in str(failed.value)
    assert "hunter2" not in str(failed.value)
