"""Blob stores: the same behaviour in a directory and in the database."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.blobs import BlobStore, DirectoryBlobs, SqlBlobs
from perdure.controller.store.engine.database import open_database


def new_database(request: pytest.FixtureRequest, folder: Path) -> Engine:
    if request.param == "sqlite":
        return open_database(f"sqlite:///{folder / 'shared.db'}")
    return open_database(request.getfixturevalue("postgres").new_database())


@pytest.fixture(params=["directory", "sqlite", "postgresql"])
def make_blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], BlobStore]:
    """Creates the store of a daemon. With a database, each daemon has a cache directory of its own."""
    if request.param == "directory":
        return lambda _name: DirectoryBlobs(tmp_path)
    engine = new_database(request, tmp_path)

    def make(name: str) -> BlobStore:
        (tmp_path / name).mkdir()
        return SqlBlobs(DirectoryBlobs(tmp_path / name), engine, ManualClock())

    return make


def test_blob_store__every_daemon_serves_a_blob_of_another(
    make_blobs: Callable[[str], BlobStore], tmp_path: Path
) -> None:
    one, two = make_blobs("one"), make_blobs("two")
    data = random.Random(2).randbytes(2**20 + 5)
    digest = hashlib.sha256(data).hexdigest()
    assert not one.has(digest)
    assert two.path(digest) is None
    written = tmp_path / "written"
    for blobs in (one, two, one):
        written.write_bytes(data)
        blobs.put(digest, written)
    assert not written.exists()
    assert two.has(digest)
    path = two.path(digest)
    assert path is not None
    assert path.read_bytes() == data
    for name in ("one", "two", ""):
        (tmp_path / name / digest).unlink(missing_ok=True)
    if not isinstance(two, DirectoryBlobs):
        fetched = two.path(digest)
        assert fetched is not None
        assert fetched.read_bytes() == data, "a file that is missing in the cache comes from the database"


def test_sql_blobs__published_file_is_no_upload(database: Engine, tmp_path: Path) -> None:
    (tmp_path / "agent").write_bytes(b"agent")
    shared = SqlBlobs(DirectoryBlobs(tmp_path), database, ManualClock())
    digest = hashlib.sha256(b"agent").hexdigest()
    shared.publish(digest, tmp_path / "agent")
    assert shared.expired(1e12, 10) == []
    assert not shared.remove(digest, 1e12)
    assert shared.has(digest)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
def test_artifact__of_another_daemon_is_served_and_an_upload_is_not(engine: Engine, tmp_path: Path) -> None:
    def daemon(name: str) -> SqlBlobs:
        for folder in (name, f"{name}-artifacts"):
            (tmp_path / folder).mkdir()
        cache = DirectoryBlobs(tmp_path / name, tmp_path / f"{name}-artifacts")
        return SqlBlobs(cache, engine, ManualClock())

    one, two = daemon("one"), daemon("two")
    published, uploaded = tmp_path / "one-artifacts" / ("a" * 64), tmp_path / "upload"
    published.write_bytes(b"the agent")
    uploaded.write_bytes(b"a workdir")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (published, uploaded)]
    published = published.rename(published.with_name(digests[0]))
    one.publish(digests[0], published)
    one.put(digests[1], uploaded)
    for blobs in (one, two):
        path = blobs.artifact_path(digests[0])
        assert path is not None
        assert path.read_bytes() == b"the agent"
        assert blobs.path(digests[1]) is not None
        assert blobs.artifact_path(digests[1]) is None


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return new_database(request, tmp_path)
