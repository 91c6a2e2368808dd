"""Which workdir a job of a cluster gets."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.agent.lifecycle.folder_removals import FolderRemovals
from perdure.agent.lifecycle.slot_workdirs import SlotWorkdirs, Workdir
from perdure.agent.storage.fetch import unpack_folder
from perdure.agent.workload import shared_workdir
from support.helpers.file_locks import is_waited_for
from support.helpers.timing import wait_until


@pytest.fixture
def workdirs(tmp_path: Path) -> SlotWorkdirs:
    return SlotWorkdirs(tmp_path / "state", {"HOME": str(tmp_path / "home")}, FolderRemovals())


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def copy(workdir: Workdir, is_cancelled: Callable[[], bool] = lambda: False) -> None:
    """What the agent of the first job in a copy does."""
    assert workdir.source is not None
    shared_workdir.copy(workdir.source.path, workdir.source.record, workdir.path, workdir.record, is_cancelled)


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
    assert not any(other.path.iterdir()), "it takes long: not on the thread that assigns"
    copy(other)
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
    wait_until(lambda: not any(other.path.parent.iterdir()), "the removal of the copy", 20)
    assert main.path.is_dir()


def test_copy__shares_no_file_with_the_job_that_has_written_it(workdirs: SlotWorkdirs, tmp_path: Path) -> None:
    main = workdirs.assign("a", "one", [])
    put(tmp_path, main.record, main.path, "one", {"code.py": "1"})
    (main.path / "results.csv").write_text("of a")
    other = workdirs.assign("b", "two", ["a"])
    copy(other)
    with open(other.path / "results.csv", "r+") as file:
        file.write("OF B")
    assert (main.path / "results.csv").read_text() == "of a"
    (main.path / "results.csv").write_text("of a again")
    assert (other.path / "results.csv").read_text() == "OF B"
    copy(other)
    assert (other.path / "results.csv").read_text() == "OF B", "it is copied once"


def test_copy__keeps_links_modes_and_empty_folders_and_leaves_pipes_out(workdirs: SlotWorkdirs) -> None:
    main = workdirs.assign("a", "one", [])
    (main.path / "venv/lib").mkdir(parents=True)
    (main.path / "venv/lib64").symlink_to("lib")
    (main.path / "nowhere").symlink_to("missing")
    (main.path / "run.sh").write_text("#!/bin/sh")
    (main.path / "run.sh").chmod(0o750)
    (main.path / "empty").mkdir(mode=0o700)
    os.mkfifo(main.path / "pipe")
    other = workdirs.assign("b", "two", ["a"])
    copy(other)
    assert sorted(path.name for path in other.path.iterdir()) == ["empty", "nowhere", "run.sh", "venv"]
    assert os.readlink(other.path / "venv/lib64") == "lib"
    assert stat.S_IMODE((other.path / "run.sh").stat().st_mode) == 0o750
    assert stat.S_IMODE((other.path / "empty").stat().st_mode) == 0o700


def test_copy__waits_while_its_source_gets_a_snapshot(workdirs: SlotWorkdirs, tmp_path: Path) -> None:
    main = workdirs.assign("a", "one", [])
    (main.path / "made.txt").write_text("made")
    other = workdirs.assign("b", "two", ["a"])
    with shared_workdir.locked(main.record):
        (main.path / "code.py").write_text("half of the snapshot that is being unpacked")
        copying = threading.Thread(target=copy, args=[other])
        copying.start()
        wait_until(lambda: not copying.is_alive() or is_waited_for(Path(f"{main.record}.lock")), "the copy to wait", 20)
        assert copying.is_alive()
        put(tmp_path, main.record, main.path, "one", {"code.py": "1"})
    copying.join()
    assert [path.name for path in other.path.iterdir()] == ["made.txt"]


def test_copy__that_was_cancelled_is_made_again(workdirs: SlotWorkdirs) -> None:
    main = workdirs.assign("a", "one", [])
    (main.path / "made.txt").write_text("made")
    other = workdirs.assign("b", "two", ["a"])
    copy(other, is_cancelled=lambda: True)
    assert not any(other.path.iterdir())
    copy(other)
    assert (other.path / "made.txt").read_text() == "made"


def test_release__does_not_wait_until_a_copy_is_removed(
    workdirs: SlotWorkdirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    workdirs.assign("a", "one", [])
    other = workdirs.assign("b", "two", ["a"])
    (other.path / "made.txt").write_text("made")
    workdirs.assign("c", "three", [])
    threads: list[threading.Thread] = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_args, **_more: threads.append(threading.current_thread()))
    workdirs.release("b")
    assert not other.path.exists()
    wait_until(lambda: threads, "the removal", 20)
    assert threads[0] is not threading.current_thread()
    monkeypatch.undo()
    assert [path.name for path in other.path.parent.iterdir()] != []
    workdirs.restore()  # of an agent that was started again
    wait_until(lambda: not any(other.path.parent.iterdir()), "the removal of what was left", 20)


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
