"""What the proxies of a daemon remove of an earlier one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.controller.api.serve import proxies
from perdure.controller.api.serve.proxies import FOLDER_PREFIX, ServiceProxies


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a daemon, whose home and temporary files are elsewhere."""
    for name in ("work", "home/services", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / "precious").write_text("x")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def start(place: Path, record: str | None = None) -> ServiceProxies:
    """A daemon that finds this record of an earlier one."""
    if record is not None:
        (place / "home/services/sockets").write_text(record)
    started = ServiceProxies(place / "home", "127.0.0.1")
    started.start()
    return started


def folder_with_a_file(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "file").write_text("x")
    return path


def test_start__removes_the_sockets_of_an_earlier_daemon(place: Path) -> None:
    start(place)
    left = Path((place / "home/services/sockets").read_text())
    (left / "7").mkdir()
    start(place)
    assert not left.exists()
    (own,) = (place / "tmp").iterdir()
    assert (place / "home/services/sockets").read_text() == str(own)


@pytest.mark.parametrize("record", ["", "\n", ".", "..", "/nowhere", "{work}", f"{FOLDER_PREFIX}a", "{work}/../work"])
def test_start__removes_nothing_that_is_not_its_own(place: Path, record: str) -> None:
    kept = folder_with_a_file(place / "work" / f"{FOLDER_PREFIX}a")
    start(place, record.format(work=place / "work"))
    assert (place / "work" / "precious").exists()
    assert (kept / "file").exists()


def test_start__does_not_follow_a_link(place: Path) -> None:
    target = folder_with_a_file(place / "target")
    link = place / "tmp" / f"{FOLDER_PREFIX}a"
    link.symlink_to(target)
    start(place, str(link))
    assert (target / "file").exists()


def test_start__leaves_the_folder_of_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = folder_with_a_file(place / "tmp" / f"{FOLDER_PREFIX}a")
    uid = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: uid)
    start(place, str(left))
    assert (left / "file").exists()


def test_start__without_space_may_be_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(place)
    before = (place / "home/services/sockets").read_text()

    def is_full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    again = ServiceProxies(place / "home", "127.0.0.1")
    with monkeypatch.context() as full:
        full.setattr(proxies.os, "fsync", is_full)
        with pytest.raises(OSError, match="No space"):
            again.start()
    assert (place / "home/services/sockets").read_text() == before, "the record is replaced as a whole"
    assert list((place / "tmp").iterdir()) == []
    again.start()
    assert len(list((place / "tmp").iterdir())) == 1
