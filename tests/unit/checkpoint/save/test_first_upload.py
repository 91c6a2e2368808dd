"""The first checkpoint of a series is committed once the bucket has its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.checkpoint import Checkpointer
from perdure.checkpoint.durability import mount_table, status
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.save import first_upload
from unit.checkpoint.training_program import CommittedSteps, Restart, Saver


@dataclass
class Uploads:
    """Records each wait: its files, the number of manifests at that time, and the timeout."""

    directory: Path
    durable: bool | None = True
    waits: list[tuple[list[str], int, float]] = field(default_factory=list)

    def wait(self, paths: Sequence[str], *, timeout_s: float, mounts: object) -> bool | None:
        manifests = list(self.directory.glob(".perdure/*.json"))
        self.waits.append(([os.path.basename(path) for path in paths], len(manifests), timeout_s))
        return self.durable


@pytest.fixture
def uploads(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """The directory is on a mount, whose uploads the test controls."""
    directory = tmp_path / "mnt" / "run"
    directory.mkdir(parents=True)
    row = {"path": str(directory.parent), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}
    (run_dir / "mounts.json").write_text(json.dumps([row]))
    monkeypatch.setattr(mount_table, "source_at", lambda *_: "store:bucket")
    made = Uploads(directory)
    monkeypatch.setattr(status, "wait_durable", made.wait)
    return made


def by_checkpointer(directory: Path) -> Iterator[None]:
    with Checkpointer(directory) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
            yield


def by_folders(directory: Path) -> Iterator[None]:
    for step in (1, 2):
        with Folders(directory).saving(step) as path:
            Path(path, "weights").write_text(str(step))
        yield


@pytest.mark.parametrize("save_each", [by_checkpointer, by_folders])
def test_wait_if_first__only_before_the_first_manifest(
    uploads: Uploads, save_each: Callable[[Path], Iterator[None]], restart: Restart
) -> None:
    saving = save_each(uploads.directory)
    next(saving)
    ((files, manifests, _),) = uploads.waits
    assert len(files) == 1
    assert manifests == 0
    list(saving)
    restart()
    list(save_each(uploads.directory))  # a later attempt
    assert len(uploads.waits) == 1


def test_wait_if_first__with_a_decorated_function(uploads: Uploads, saver: Saver) -> None:
    save = saver(uploads.directory)
    save(1)
    save(2)
    assert [(files, manifests) for files, manifests, _ in uploads.waits] == [(["model_1.pt"], 0)]


def test_wait_if_first__gives_up_after_the_limit(
    uploads: Uploads, saver: Saver, committed: CommittedSteps, caplog: pytest.LogCaptureFixture
) -> None:
    uploads.durable = False
    saver(uploads.directory)(1)
    assert committed(uploads.directory) == [1]
    assert uploads.waits[0][2] == first_upload.LIMIT_S
    assert "has not reached the bucket" in caplog.text


def test_wait_if_first__ends_at_the_deadline_of_a_notice(uploads: Uploads, saver: Saver, run_dir: Path) -> None:
    (run_dir / "notice.json").write_text(json.dumps({"deadline": 1.0}))  # long ago
    saver(uploads.directory)(1)
    assert uploads.waits[0][2] == 0


def test_wait_if_first__does_not_count_as_the_cost_of_a_save(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_upload, "wait_if_first", lambda *_: 1000.0)
    with Checkpointer(uploads.directory) as checkpointer:
        checkpointer.save(1, {"step": 1})
        assert checkpointer._final_save.commit_s is not None
        assert checkpointer._final_save.commit_s < 0


def test_wait_if_first__does_not_wait_on_a_disk(tmp_path: Path, saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "wait_durable", lambda *_, **__: pytest.fail("waited"))
    saver(tmp_path)(1)
