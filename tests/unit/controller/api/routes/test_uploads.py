"""Uploads: stored under the digest that is verified, complete or not at all, and never larger than allowed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.app import application
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings

LIMIT = 1000


@dataclass(frozen=True)
class Uploads:
    client: TestClient
    clock: ManualClock
    folder: Path

    def put(self, content: bytes, digest: str = "", *, chunked: bool = False) -> int:
        body = iter([content[:7], content[7:]]) if chunked else content
        return self.client.put(self.path(content, digest), content=body).status_code

    def is_stored(self, content: bytes) -> bool:
        return self.client.head(self.path(content)).status_code == 200

    def path(self, content: bytes, digest: str = "") -> str:
        return f"/api/v1/uploads/{digest or hashlib.sha256(content).hexdigest()}"

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uploads]:
    clock, home = ManualClock(), tmp_path_factory.mktemp("home")
    daemon = Daemon(Settings(home, max_upload_bytes=LIMIT), clock)
    headers = {"Authorization": f"Bearer {daemon.api_context.keyring.user_token}"}
    client = TestClient(application(daemon.api_context), base_url="http://127.0.0.1", headers=headers)
    yield Uploads(client, clock, home / "uploads")
    daemon.socket.close()
    daemon.close()


@pytest.fixture
def uploads(opened: Uploads) -> Uploads:
    for path in opened.folder.iterdir():
        path.unlink()
    return opened


@pytest.mark.parametrize("chunked", [False, True])
def test_upload__is_stored_under_its_digest_once(uploads: Uploads, chunked: bool) -> None:
    content = os.urandom(LIMIT)
    assert not uploads.is_stored(content)
    assert uploads.put(content, chunked=chunked) == 201
    assert uploads.files() == {hashlib.sha256(content).hexdigest(): content}
    assert uploads.is_stored(content)
    assert uploads.put(b"not sent again", hashlib.sha256(content).hexdigest()) == 200
    assert uploads.files() == {hashlib.sha256(content).hexdigest(): content}


@pytest.mark.parametrize("chunked", [False, True])
def test_upload__beyond_the_limit_leaves_nothing(uploads: Uploads, chunked: bool) -> None:
    """Also without a Content-Length, which says how much to expect."""
    content = os.urandom(LIMIT + 1)
    assert uploads.put(content, chunked=chunked) == 413
    assert uploads.files() == {}
    error = uploads.client.put(uploads.path(content), content=content).json()["error"]
    assert "larger than" in error["message"]
    assert "uploads.max_gib" in error["fix"]


@pytest.mark.parametrize(("length", "status"), [("0" * 5000 + "3", 201), ("9" * 5000, 413), ("0" * 6 + "1001", 413)])
def test_upload__length_may_have_any_number_of_digits(uploads: Uploads, length: str, status: int) -> None:
    headers = {"Content-Length": length}
    assert uploads.client.put(uploads.path(b"abc"), content=b"abc", headers=headers).status_code == status


def test_upload__of_other_bytes_leaves_nothing(uploads: Uploads) -> None:
    response = uploads.client.put(uploads.path(b"", "a" * 64), content=b"other bytes")
    assert (response.status_code, response.json()["error"]["where"]) == (400, "digest")
    assert uploads.files() == {}
    assert not uploads.is_stored(b"other bytes")


@pytest.mark.parametrize(
    "digest", ["a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "%0A", "..%2F..%2Fsecret.key", "%2e%2e%2ftoken"]
)
@pytest.mark.parametrize("method", ["PUT", "HEAD"])
def test_upload__needs_a_digest_for_a_name(uploads: Uploads, digest: str, method: str) -> None:
    assert uploads.client.request(method, f"/api/v1/uploads/{digest}").status_code in (400, 404)
    assert uploads.files() == {}
    assert not list(uploads.folder.parent.glob("*.new*"))


def test_upload__that_is_asked_for_is_renewed(uploads: Uploads) -> None:
    """Retention deletes the ones that nobody has asked for during a day."""
    content = b"kept"
    uploads.put(content)
    stored = uploads.folder / hashlib.sha256(content).hexdigest()
    for ask in (uploads.is_stored, uploads.put):
        uploads.clock.advance(1000.0)
        ask(content)
        assert stored.stat().st_mtime == pytest.approx(uploads.clock.now(), abs=1)
