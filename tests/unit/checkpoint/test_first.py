"""The first checkpoint of a series is committed when the bucket has its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, durability, first, mount_table
from perdure.checkpoint.folders import Folders


@dataclass
class Uploads:
    """What was waited for: its files, how many manifests there were, and for how long at most."""

    directory: Path
    answer: bool | None = True
    waits: list[tuple[list[str], int, float]] = field(default_factory=list)

    def wait(self, paths: Sequence[str], *, timeout_s: float) -> bool | None:
        manifests = list(self.directory.glob(".perdure/*.json"))
        self.waits.append(([os.path.basename(path) for path in paths], len(manifests), timeout_s))
        return self.answer


@pytest.fixture
def uploads(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """The directory lies on a mount, where uploads are as the test says."""
    directory = tmp_path / "mnt" / "run"
    directory.mkdir(parents=True)
    row = {"path": str(directory.parent), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}
    (run_dir / "mounts.json").write_text(json.dumps([row]))
    monkeypatch.setattr(mount_table, "source_at", lambda _path: "store:bucket")
    made = Uploads(directory)
    monkeypatch.setattr(durability, "wait_durable", made.wait)
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
def test_the_first_manifest_waits_and_no_other(
    uploads: Uploads, save_each: Callable[[Path], Iterator[None]], restart: Callable[[], None]
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


def test_a_decorated_function(uploads: Uploads, saver: Callable[..., Any]) -> None:
    save = saver(uploads.directory)
    save(1)
    save(2)
    assert [(files, manifests) for files, manifests, _ in uploads.waits] == [(["model_1.pt"], 0)]


def test_a_bucket_that_does_not_answer_is_not_waited_for_for_ever(
    uploads: Uploads, saver: Callable[..., Any], committed: Callable[..., list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    uploads.answer = False
    saver(uploads.directory)(1)
    assert committed(uploads.directory) == [1]
    assert uploads.waits[0][2] == first.LIMIT_S
    assert "has not reached the bucket" in caplog.text


def test_the_wait_ends_with_the_machine(uploads: Uploads, saver: Callable[..., Any], run_dir: Path) -> None:
    (run_dir / "notice.json").write_text(json.dumps({"deadline": 1.0}))  # long ago
    saver(uploads.directory)(1)
    assert uploads.waits[0][2] == 0


def test_what_is_waited_for_is_no_cost_of_a_save(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "upload", lambda *_: 1000.0)
    with Checkpointer(uploads.directory) as checkpointer:
        checkpointer.save(1, {"step": 1})
        assert checkpointer._farewell.commit_s is not None
        assert checkpointer._farewell.commit_s < 0


def test_off_the_mounts_nobody_waits(
    tmp_path: Path, saver: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "wait_durable", lambda *_, **__: pytest.fail("waited"))
    saver(tmp_path)(1)
