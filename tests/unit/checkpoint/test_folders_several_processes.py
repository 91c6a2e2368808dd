"""A folder that several processes write into, each through its own mount. The mounts are directories with the same
content only after `sync`, as mounts of one bucket are."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.ranks import collective
from perdure.checkpoint.ranks.group import PeersMissing
from unit.checkpoint.training_program import ManifestOf

TIMEOUT_S = 5.0


@dataclass
class Rendezvous:
    """Threads that exchange values. A missing thread breaks it, as a dead process does."""

    size: int
    gathered: dict[int, Any] = field(default_factory=dict)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)


@dataclass
class Member:
    rendezvous: Rendezvous
    rank: int

    @property
    def world_size(self) -> int:
        return self.rendezvous.size

    def all_gather(self, topic: str, mine: Any) -> list[Any]:
        try:
            self.rendezvous.gathered[self.rank] = (topic, mine)
            self.rendezvous.barrier.wait(TIMEOUT_S)
            gathered = [self.rendezvous.gathered[rank] for rank in range(self.world_size)]
            self.rendezvous.barrier.wait(TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise PeersMissing(f"agreeing on {topic!r}") from None
        assert {one for one, _ in gathered} == {topic}
        return [what for _, what in gathered]


@dataclass
class Machines:
    """`count` machines, each with its own directory for the same bucket."""

    directory: Path
    count: int

    def root(self, rank: int) -> Path:
        return self.directory / f"machine-{rank}"

    def sync(self) -> None:
        """Copy the files of each machine to all others."""
        for source in range(self.count):
            for target in set(range(self.count)) - {source}:
                shutil.copytree(self.root(source), self.root(target), dirs_exist_ok=True)

    def all_do(self, work: Callable[[Folders, int], Any]) -> list[Any]:
        """The result or the exception of `work`, by rank."""
        rendezvous = Rendezvous(self.count)

        def one(rank: int) -> Any:
            try:
                return work(Folders(self.root(rank), group=Member(rendezvous, rank)), rank)
            except Exception as error:
                if not isinstance(error, CheckpointError):
                    rendezvous.barrier.abort()
                return error

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, range(self.count)))

    def save(self, step: int) -> None:
        def write(folders: Folders, rank: int) -> None:
            with folders.saving(step) as path:
                Path(path, f"part-{rank}").write_bytes(b"%d of %d" % (step, rank) * 100)

        assert self.all_do(write) == [None] * self.count
        self.sync()

    def newest(self) -> list[Any]:
        return self.all_do(lambda folders, _rank: folders.newest())


@pytest.fixture(params=[2, 4])
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machines:
    made = Machines(tmp_path, request.param)
    for rank in range(made.count):
        made.root(rank).mkdir()
    monkeypatch.setattr(collective, "_filesystem_id", lambda root: Path(root).name)
    return made


def test_folders__list_the_files_of_every_machine(machines: Machines, manifest_of: ManifestOf) -> None:
    machines.save(1)
    listed = [one["path"] for one in manifest_of(machines.root(0), 1)["files"]]
    assert listed == [f"checkpoint-1/part-{rank}" for rank in range(machines.count)]
    newest = machines.newest()
    assert [one.step for one in newest] == [1] * machines.count
    assert [Path(one.path).parent.name for one in newest] == [f"machine-{rank}" for rank in range(machines.count)]


def test_folders__short_or_late_file_of_another_machine_is_damage(machines: Machines) -> None:
    for step in (1, 2):
        machines.save(step)
    last = machines.count - 1
    damaged = machines.root(last) / "checkpoint-2" / f"part-{last}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for newest in machines.newest():
        assert isinstance(newest, Folder)
        assert newest.step == 1
        assert [step for step, _ in newest.skipped] == [2]
    (machines.root(0) / "checkpoint-1" / "part-1").unlink()
    assert [type(one) for one in machines.newest()] == [NoUsableCheckpoint] * machines.count


def test_folders__machine_with_an_empty_view_is_no_first_run(machines: Machines) -> None:
    assert machines.newest() == [None] * machines.count
    machines.save(1)
    shutil.rmtree(machines.root(1))
    machines.root(1).mkdir()
    assert [type(one) for one in machines.newest()] == [CheckpointUnavailable] * machines.count


def test_folders__process_that_dies_before_the_commit(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.save(1)

    def write(folders: Folders, rank: int) -> None:
        with folders.saving(2) as path:
            Path(path, f"part-{rank}").write_bytes(b"x")
            if rank == 1:
                raise KeyError

    ended = machines.all_do(write)
    assert [type(one) for one in ended] == [PeersMissing, KeyError] + [PeersMissing] * (machines.count - 2)
    machines.sync()
    assert [one.step for one in machines.newest()] == [1] * machines.count
    machines.save(2)
    assert [one.step for one in machines.newest()] == [2] * machines.count


def test_folders__failure_of_one_process_is_raised_by_all(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.checkpoint.ranks import folder_parts

    real = folder_parts._digest_file

    def full(path: str, name: str, mounts: MountSnapshot) -> FileRecord:
        if name == "part-1":
            raise OSError(28, "No space left on device")
        return real(path, name, mounts)

    monkeypatch.setattr(folder_parts, "_digest_file", full)

    def write(folders: Folders, rank: int) -> None:
        with folders.saving(1) as path:
            Path(path, f"part-{rank}").write_bytes(b"x")

    for error in machines.all_do(write):
        assert isinstance(error, CheckpointError)
        assert "rank 1: [Errno 28] No space left" in str(error)
    assert machines.newest() == [None] * machines.count


def test_folders__leftovers_of_a_failed_save_are_removed(machines: Machines, manifest_of: ManifestOf) -> None:
    stale = machines.root(1) / "checkpoint-1" / "part-9"
    stale.parent.mkdir()
    stale.write_bytes(b"of a try that failed")
    machines.save(1)
    assert len(manifest_of(machines.root(0), 1)["files"]) == machines.count


def test_folders__shared_disk_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, verified = Machines(tmp_path, 3), []
    monkeypatch.setattr(Machines, "root", lambda self, _rank: self.directory / "shared")
    monkeypatch.setattr(Machines, "sync", lambda _self: None)
    machines.save(1)
    real = Folders._search
    monkeypatch.setattr(Folders, "_search", lambda self, *a: verified.append(self._group.rank) or real(self, *a))
    assert [one.step for one in machines.newest()] == [1, 1, 1]
    assert verified == [0]
