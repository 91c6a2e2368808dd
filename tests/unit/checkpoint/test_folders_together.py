"""A folder that several processes write into, each through a mount of its own: directories of the test's own that hold
the same only once `sync` was called, as mounts of one bucket do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import together
from perdure.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.group import PeersMissing

TIMEOUT_S = 5.0


@dataclass
class Meeting:
    """Threads that share what they say. One that does not come breaks it, as a process that died does."""

    size: int
    said: dict[int, Any] = field(default_factory=dict)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)


@dataclass
class Member:
    meeting: Meeting
    rank: int

    @property
    def world_size(self) -> int:
        return self.meeting.size

    def share(self, topic: str, mine: Any) -> list[Any]:
        try:
            self.meeting.said[self.rank] = (topic, mine)
            self.meeting.barrier.wait(TIMEOUT_S)
            said = [self.meeting.said[rank] for rank in range(self.world_size)]
            self.meeting.barrier.wait(TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise PeersMissing(f"agreeing on {topic!r}") from None
        assert {one for one, _ in said} == {topic}
        return [what for _, what in said]


@dataclass
class Machines:
    """`count` machines, each with a directory of its own for the same bucket."""

    directory: Path
    count: int

    def root(self, rank: int) -> Path:
        return self.directory / f"machine-{rank}"

    def sync(self) -> None:
        """What one has, all have."""
        for source in range(self.count):
            for target in set(range(self.count)) - {source}:
                shutil.copytree(self.root(source), self.root(target), dirs_exist_ok=True)

    def all_do(self, work: Callable[[Folders, int], Any]) -> list[Any]:
        """What `work` returned or raised, by rank."""
        meeting = Meeting(self.count)

        def one(rank: int) -> Any:
            try:
                return work(Folders(self.root(rank), group=Member(meeting, rank)), rank)
            except Exception as error:
                if not isinstance(error, CheckpointError):
                    meeting.barrier.abort()
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
    monkeypatch.setattr(together, "_place", lambda root: Path(root).name)
    return made


def test_every_machines_files_belong_to_it(machines: Machines, manifest_of: Callable[..., Any]) -> None:
    machines.save(1)
    listed = [one["path"] for one in manifest_of(machines.root(0), 1)["files"]]
    assert listed == [f"checkpoint-1/part-{rank}" for rank in range(machines.count)]
    found = machines.newest()
    assert [one.step for one in found] == [1] * machines.count
    assert [Path(one.path).parent.name for one in found] == [f"machine-{rank}" for rank in range(machines.count)]


def test_files_of_another_machine_that_are_short_or_late(machines: Machines) -> None:
    for step in (1, 2):
        machines.save(step)
    last = machines.count - 1
    damaged = machines.root(last) / "checkpoint-2" / f"part-{last}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for found in machines.newest():
        assert isinstance(found, Folder)
        assert found.step == 1
        assert [step for step, _ in found.skipped] == [2]
    (machines.root(0) / "checkpoint-1" / "part-1").unlink()
    assert [type(one) for one in machines.newest()] == [NoUsableCheckpoint] * machines.count


def test_one_that_sees_nothing_is_no_first_run(machines: Machines) -> None:
    assert machines.newest() == [None] * machines.count
    machines.save(1)
    shutil.rmtree(machines.root(1))
    machines.root(1).mkdir()
    assert [type(one) for one in machines.newest()] == [CheckpointUnavailable] * machines.count


def test_one_that_dies_before_the_commit(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failure_of_one_is_raised_by_all(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.checkpoint import folder_parts

    real = folder_parts._record

    def full(path: str, name: str) -> Any:
        if name == "part-1":
            raise OSError(28, "No space left on device")
        return real(path, name)

    monkeypatch.setattr(folder_parts, "_record", full)

    def write(folders: Folders, rank: int) -> None:
        with folders.saving(1) as path:
            Path(path, f"part-{rank}").write_bytes(b"x")

    for error in machines.all_do(write):
        assert isinstance(error, CheckpointError)
        assert "rank 1: [Errno 28] No space left" in str(error)
    assert machines.newest() == [None] * machines.count


def test_what_an_earlier_try_left_on_a_machine_is_no_part_of_it(
    machines: Machines, manifest_of: Callable[..., Any]
) -> None:
    stale = machines.root(1) / "checkpoint-1" / "part-9"
    stale.parent.mkdir()
    stale.write_bytes(b"of a try that failed")
    machines.save(1)
    assert len(manifest_of(machines.root(0), 1)["files"]) == machines.count


def test_a_disk_that_all_share_is_emptied_and_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines, verified = Machines(tmp_path, 3), []
    monkeypatch.setattr(Machines, "root", lambda self, _rank: self.directory / "shared")
    monkeypatch.setattr(Machines, "sync", lambda _self: None)
    machines.save(1)
    real = Folders._search
    monkeypatch.setattr(Folders, "_search", lambda self, *a: verified.append(self._group.rank) or real(self, *a))
    assert [one.step for one in machines.newest()] == [1, 1, 1]
    assert verified == [0]
