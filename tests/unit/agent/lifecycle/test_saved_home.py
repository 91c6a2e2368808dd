"""The home of a cluster's node in a bucket of a local store: what is saved, restored, and left out."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.lifecycle.saved_home import SavedHome
from perdure.agent.storage.node_storage import HomeNotKept


class Machine:
    """A machine with a fresh home, as its image has it."""

    def __init__(self, root: Path, name: str, *, rank: int = 0) -> None:
        self.home = root / name / "home"
        self.home.mkdir(parents=True)
        (self.home / ".bashrc").write_text("image")
        (self.home / ".agent").mkdir()
        os.utime(self.home / ".bashrc", (1, 1))
        self.bucket = root / "buckets" / "b"
        self.mount: dict[str, Any] = {"bucket": "b", "rclone": {"type": "local", "root": str(root / "buckets")}}
        self.saved = SavedHome(
            self.home,
            rank,
            baseline=root / name / "home.json",
            excluded=[self.home / ".agent", self.home / "data"],
            rclone=lambda: None,
        )
        self.saved.record_baseline()

    def end(self) -> int:
        return self.saved.save(self.mount)

    def start(self) -> int:
        return self.saved.restore(self.mount)

    def files(self) -> dict[str, str]:
        return {str(p.relative_to(self.home)): p.read_text() for p in self.home.rglob("*") if p.is_file()}


def test_home__is_the_same_on_another_machine(tmp_path: Path) -> None:
    first = Machine(tmp_path, "first")
    (first.home / "work" / "empty").mkdir(parents=True)
    script = first.home / "work" / "run.sh"
    script.write_text("#!/bin/sh")
    script.chmod(0o750)
    os.utime(script, (1_000_000, 1_000_000))
    (first.home / "work" / "link").symlink_to("/nowhere/at/all")
    (first.home / "work" / "pipe").unlink(missing_ok=True)
    os.mkfifo(first.home / "work" / "pipe")
    (first.home / "work").chmod(0o500)
    first.end()
    second = Machine(tmp_path, "second")
    assert second.start() == 4
    assert (second.home / "work" / "run.sh").read_text() == "#!/bin/sh"
    status = (second.home / "work" / "run.sh").stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o750, 1_000_000)
    assert os.readlink(second.home / "work" / "link") == "/nowhere/at/all"
    assert (second.home / "work" / "empty").is_dir()
    assert ((second.home / "work").stat().st_mode & 0o777) == 0o500
    assert not (second.home / "work" / "pipe").exists()


def test_save__leaves_out_what_the_image_has_and_what_is_not_of_the_home(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "first")
    (machine.home / ".agent" / "token").write_text("secret")
    (machine.home / "data").mkdir()
    (machine.home / "data" / "bucket.bin").write_text("in a bucket")
    (machine.home / "own").write_text("x")
    assert machine.end() == 1
    other = Machine(tmp_path, "second")
    other.start()
    assert other.files() == {".bashrc": "image", "own": "x"}


def test_home__survives_several_stops(tmp_path: Path) -> None:
    for number in range(3):
        machine = Machine(tmp_path, f"m{number}")
        machine.start()
        (machine.home / ".bashrc").write_text(f"changed {number}")
        (machine.home / f"f{number}").write_text(str(number))
        machine.end()
    last = Machine(tmp_path, "last")
    last.start()
    assert last.files() == {".bashrc": "changed 2", "f0": "0", "f1": "1", "f2": "2"}
    assert len(list(last.bucket.glob("*.tar"))) == 1, "only the newest archive is kept"


def test_rank__has_a_home_of_its_own(tmp_path: Path) -> None:
    for rank in (0, 1):
        machine = Machine(tmp_path, f"first-{rank}", rank=rank)
        (machine.home / "rank").write_text(str(rank))
        machine.end()
    other = Machine(tmp_path, "second", rank=1)
    other.start()
    assert (other.home / "rank").read_text() == "1"


def test_save_that_is_cut_short__leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, "first")
    (machine.home / "kept").write_text("1")
    machine.end()
    (machine.home / "kept").write_text("22")

    def cut_short(*_: Any) -> int:
        raise OSError("the network is gone")

    monkeypatch.setattr(SavedHome, "_pack", cut_short)
    with pytest.raises(HomeNotKept, match="the network is gone"):
        machine.end()
    other = Machine(tmp_path, "second")
    other.start()
    assert (other.home / "kept").read_text() == "1"


def test_restore__refuses_a_damaged_archive(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "first")
    (machine.home / "kept").write_text("1" * 5000)
    machine.end()
    (archive,) = machine.bucket.glob("*.tar")
    data = bytearray(archive.read_bytes())
    data[-3000] ^= 1
    archive.write_bytes(data)
    with pytest.raises(HomeNotKept, match="rank 0"):
        Machine(tmp_path, "second").start()
    assert Machine(tmp_path, "third", rank=5).start() == 0, "nothing was saved yet"


def test_restore__writes_nothing_outside_of_the_home(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "first")
    machine.end()
    (manifest,) = machine.bucket.glob("r0.json")
    evil = machine.bucket / "evil.tar"
    with tarfile.open(evil, "w") as tar:
        member = tarfile.TarInfo("../evil")
        tar.addfile(member)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "archive": "evil.tar"}))
    with pytest.raises(HomeNotKept, match="outside of the home"):
        Machine(tmp_path, "second").start()
    assert not (tmp_path / "second" / "evil").exists()
