"""A save calls the function once and commits everything that it wrote, or nothing."""

from __future__ import annotations

import datetime as dt
import json
import os
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from perdure.checkpoint import CheckpointError, CheckpointUnavailable, latest, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.format import manifest
from unit.checkpoint.training_program import CommittedSteps, Loader, ManifestOf, Saver


def test_manifest__has_files_writer_and_time(
    save_dir: Path, manifest_of: ManifestOf, monkeypatch: pytest.MonkeyPatch, saver: Saver
) -> None:
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026_x_1-0")
    monkeypatch.setenv("PERDURE_GENERATION", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert saver(save_dir, metadata={"run": "a", "path": save_dir})(5, b"12345") == "saved 5"
    document = manifest_of(save_dir, 5)
    assert (document["format"], document["prefix"], document["step"]) == (2, "checkpoint", 5)
    (record,) = document["files"]
    assert (record["path"], record["size"]) == ("model_5.pt", 5)
    if record["algorithm"] == "crc32":
        assert record["digest"] == f"{zlib.crc32(b'12345'):08x}"
    created = dt.datetime.strptime(document["created_at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)
    assert abs((save_dir / "model_5.pt").stat().st_mtime - created.timestamp()) < 60
    writer = document["written_by"]
    assert (writer["task_id"], writer["job_id"], writer["generation"], writer["world_size"]) == (
        "sky-managed-2026_x_1-0",
        1,
        3,
        8,
    )
    assert (writer["host"], writer["pid"]) == (os.uname().nodename, os.getpid())
    assert document["versions"]["python"].startswith("3.")
    assert document["metadata"] == {"run": "a", "path": str(save_dir)}


def test_save__calls_the_function_once_even_if_it_fails(save_dir: Path, committed: CommittedSteps) -> None:
    calls = []

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        calls.append(step)
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save(1)
    assert calls == [1]
    assert committed(save_dir) == []
    assert latest(save_dir) is None


@pytest.mark.parametrize(
    ("error", "free", "stays"),
    [
        (OSError(28, "No space left on device"), 10**9, False),
        (RuntimeError("PytorchStreamWriter failed writing file"), 1000, False),
        (RuntimeError("something else"), 10**9, True),
    ],
)
def test_save__half_file_of_a_full_disk_is_removed(
    save_dir: Path, saver: Saver, monkeypatch: pytest.MonkeyPatch, error: Exception, free: int, stays: bool
) -> None:
    """It would take the room that the next save needs."""
    saver(save_dir)(1)
    (save_dir / "notes_2.txt").write_text("mine")  # it was there before

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        (save_dir / "other.pt").write_bytes(b"no step in its name")
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
        raise error

    with pytest.raises(type(error)):
        save(2)
    there = {path.name for path in save_dir.iterdir()} - {".perdure"}
    assert there == {"model_1.pt", "notes_2.txt", "other.pt", *({"model_2.pt"} if stays else set())}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_save__interruption_leaves_the_step_uncommitted(
    save_dir: Path, committed: CommittedSteps, error: type[BaseException], saver: Saver, loader: Loader
) -> None:
    saver(save_dir)(1)

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"half")
        raise error

    with pytest.raises(error):
        save(2)
    assert committed(save_dir) == [1]
    assert loader(save_dir)() == b"weights"


def test_save__nothing_written_is_an_error(save_dir: Path, committed: CommittedSteps, saver: Saver) -> None:
    save = saver(save_dir)
    save(1)

    @save_checkpoint(save_dir)
    def forgets(step: int) -> bool:
        return False

    with pytest.raises(CheckpointError, match=r"no file under .* was created or changed"):
        forgets(2)
    assert committed(save_dir) == [1]


def test_save__written_elsewhere_is_an_error(save_dir: Path, tmp_path: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (tmp_path / "elsewhere.pt").write_bytes(b"x")

    with pytest.raises(CheckpointError, match="pass the directory it writes to as save_dir"):
        save(1)


def test_save__empty_file_is_an_error_unless_ignored(save_dir: Path, committed: CommittedSteps) -> None:
    def write(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"x")
        (save_dir / f"done_{step}").touch()

    with pytest.raises(CheckpointError, match=r"done_1 .* is empty.*ignore=\['done_1'\]"):
        save_checkpoint(save_dir)(write)(1)
    assert committed(save_dir) == []
    save_checkpoint(save_dir, ignore="done_*")(write)(2)
    assert [info.files for info in steps(save_dir)] == [("model_2.pt",)]


def test_save__failed_commit_is_no_checkpoint(
    save_dir: Path, monkeypatch: pytest.MonkeyPatch, committed: CommittedSteps, saver: Saver
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    save = saver(save_dir)
    save(1)
    monkeypatch.setattr(manifest.os, "replace", full)
    with pytest.raises(CheckpointError, match=r"committing step 2.*No space left"):
        save(2)
    assert save.calls == [1, 2]
    assert committed(save_dir) == [1]
    assert not [name for name in os.listdir(save_dir / ".perdure") if name.startswith(".tmp")]


def test_save__failure_after_the_commit_is_a_warning(
    save_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saver: Saver, loader: Loader
) -> None:
    save = saver(save_dir, max_checkpoints=1)
    save(1)

    def refuse(root: str, name: str) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manifest, "delete", refuse)
    assert save(2) == "saved 2"
    assert "removing the checkpoint of step 1" in caplog.text
    assert loader(save_dir)() == b"weights"


def test_save__file_still_being_written_is_an_error(
    save_dir: Path, monkeypatch: pytest.MonkeyPatch, saver: Saver
) -> None:
    from perdure.checkpoint.format import digest

    real = digest.hash_file

    def while_it_grows(path: str, *args: Any, **options: Any) -> object:
        with open(path, "ab") as file:
            file.write(b"more")
        return real(path, *args, **options)

    monkeypatch.setattr(digest, "hash_file", while_it_grows)
    with pytest.raises(CheckpointError, match="still being written"):
        saver(save_dir)(1)


def test_save__resolves_the_directory_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @save_checkpoint("out")
    def save(step: int) -> None:
        with open(f"out/model_{step}.pt", "w") as file:
            file.write("x")

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        save(1)
        assert latest("out") == 1
    target = tmp_path / "c"
    late = save_checkpoint(lambda: target)(lambda step: (target / f"{step}.bin").write_text("x"))
    late(9)
    assert latest(target) == 9


def test_save__unusable_directory_is_reported_before_the_call(tmp_path: Path, saver: Saver) -> None:
    (tmp_path / "file").write_text("not a directory")
    save = saver(tmp_path / "file")
    with pytest.raises(CheckpointUnavailable, match="cannot be used"):
        save(1)
    assert save.calls == []


def test_save__prefix_of_any_characters(save_dir: Path, saver: Saver, loader: Loader) -> None:
    for prefix in ("exp[1]", "exp*", "a_step_b", "x-1-2", "naïve ✓"):
        saver(save_dir, checkpoint_prefix=prefix)(3, prefix.encode())
        assert loader(save_dir, checkpoint_prefix=prefix)() == prefix.encode()
        assert [info.step for info in steps(save_dir, prefix=prefix)] == [3]


def test_save__file_names_that_are_not_text(save_dir: Path) -> None:
    name = b"caf\xe9_1.pt"

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        with open(os.path.join(os.fsencode(save_dir), name), "wb") as file:
            file.write(b"x")

    save(1)
    assert steps(save_dir, verify=True)[0].state == "committed"


@pytest.mark.parametrize("count", [0, -1])
def test_save_checkpoint__rejects_max_checkpoints_below_one(save_dir: Path, count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        save_checkpoint(save_dir, max_checkpoints=count)


@pytest.mark.parametrize("prefix", ["", "a/b", ".hidden", "nul\0"])
def test_save_checkpoint__rejects_invalid_prefixes(save_dir: Path, prefix: str) -> None:
    with pytest.raises(ValueError, match="checkpoint_prefix"):
        save_checkpoint(save_dir, checkpoint_prefix=prefix)
    with pytest.raises(ValueError, match="checkpoint_prefix"):
        load_checkpoint(save_dir, checkpoint_prefix=prefix)


def test_manifest__has_its_own_checksum(save_dir: Path, manifest_of: ManifestOf, saver: Saver) -> None:
    saver(save_dir, metadata={"loss": 1})(1)
    (path,) = (save_dir / ".perdure").glob("*.json")
    document = manifest_of(save_dir, 1)
    document["metadata"]["loss"] = 2
    path.write_text(json.dumps(document))
    (info,) = steps(save_dir)
    assert info.state == "damaged"
    assert "does not match its own checksum" in info.reason
