"""Which workdir a job of a cluster gets."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from perdure.agent.lifecycle.slot_workdirs import SlotWorkdirs
from perdure.agent.storage import shared_workdir
from perdure.agent.storage.fetch import unpack_folder


@pytest.fixture
def workdirs(tmp_path: Path) -> SlotWorkdirs:
    return SlotWorkdirs(tmp_path / "state", {"HOME": str(tmp_path / "home")})


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def put(tmp_path: Path, record: Path, folder: Path, snapshot: str, files: dict[str, str]) -> None:
    packed = archive(tmp_path / "a.tar.gz", files)
    shared_workdir.replace(
        record, snapshot, folder, packed, lambda: unpack_folder(packed, folder, log=lambda _line: None)
    )


def test_assign__shares_the_folder_among_jobs_with_the_same_files(workdirs: SlotWorkdirs, tmp_path: Path) -> None:
    first = workdirs.assign("a", "one", [])
    assert first.path == tmp_path / "home/sky_workdir"
    assert workdirs.assign("b", "one", ["a"]).path == first.path
    assert workdirs.assign("c", None, ["a", "b"]).path == first.path
    assert workdirs.assign("d", "two", []).path == first.path, "no job runs in it"


def test_assign__copies_what_jobs_have_written_when_other_files_come(workdirs: SlotWorkdirs, tmp_path: Path) -> None:
    main = workdirs.assign("a", "one", [])
    put(tmp_path, main.record, main.path, "one", {"code.py": "1", "lib/old.py": "1"})
    (main.path / "lib/made.txt").write_text("made")
    other = workdirs.assign("b", "two", ["a"])
    assert other.path != main.path
    put(tmp_path, other.record, other.path, "two", {"code.py": "2"})
    assert (main.path / "code.py").read_text() == "1"
    assert sorted(str(p.relative_to(other.path)) for p in other.path.rglob("*") if p.is_file()) == [
        "code.py",
        "lib/made.txt",
    ]
    assert workdirs.assign("c", None, ["a", "b"]).path == other.path, "the newest snapshot"
    workdirs.assign("d", "three", [])
    for slot in ("a", "b", "c", "d"):
        workdirs.release(slot)
    assert not other.path.exists()
    assert main.path.is_dir()


def test_assign__gives_a_clone_a_folder_of_its_own(workdirs: SlotWorkdirs) -> None:
    cloned = workdirs.assign("a", "git-0123456789abcdef", [])
    assert cloned.path.name == "git-0123456789ab"
    assert not any(cloned.path.iterdir())
    assert workdirs.assign("b", "one", ["a"]).path.name == "sky_workdir"


def test_replace__removes_old_files_and_no_others(tmp_path: Path) -> None:
    folder, record = tmp_path / "work", tmp_path / "record.json"
    put(tmp_path, record, folder, "one", {"a.txt": "1", "sub/b.txt": "1"})
    linked = tmp_path / "linked"
    os.link(folder / "a.txt", linked)
    (folder / "made.txt").write_text("made")
    put(tmp_path, record, folder, "two", {"a.txt": "2"})
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt", "made.txt"]
    assert (folder / "a.txt").read_text() == "2"
    assert linked.read_text() == "1", "another job's copy of the file does not change"
    assert shared_workdir.holds(record, "two")
    assert not shared_workdir.holds(record, "one")
