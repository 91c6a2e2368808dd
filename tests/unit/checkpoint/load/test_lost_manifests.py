"""Checkpoints without manifests are never taken for "nothing saved yet"; what a killed first save leaves is."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.checkpoint import Checkpointer, CheckpointUnavailable
from perdure.checkpoint.__main__ import main
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.load import part_files
from support.helpers.timing import scaled
from unit.checkpoint.training_program import Restart


def test_checkpointer__lost_manifests_are_refused_until_adopted(
    tmp_path: Path, restart: Restart, capsys: pytest.CaptureFixture[str]
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() is None
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
    shutil.rmtree(tmp_path / ".perdure")
    restart()
    with pytest.raises(CheckpointUnavailable, match=r"no manifest that tells .* adopt --prefix checkpoint"):
        Checkpointer(tmp_path).load()
    with Checkpointer(tmp_path, prefix="other") as other:
        assert other.load() is None
    assert main(["adopt", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "adopted checkpoint step 1\nadopted checkpoint step 2\n"
    assert Checkpointer(tmp_path).load() == {"step": 2}


def test_adopt__leaves_out_steps_that_lack_a_part(tmp_path: Path, restart: Restart) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"step": 1})
    shutil.rmtree(tmp_path / ".perdure")
    restart()
    (tmp_path / f"checkpoint-{2:012d}-0of2-00000000.safetensors").write_bytes(b"one of two")
    assert main(["adopt", str(tmp_path)]) == 0
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() == {"step": 1}
        assert [info.step for info in checkpointer.steps()] == [1]


def test_folders__of_another_program_are_refused_until_adopted(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model").write_bytes(b"x" * step)
    (tmp_path / "checkpoint-20").mkdir()
    folders = Folders(tmp_path)
    folders.record_beginning()
    with pytest.raises(CheckpointUnavailable, match="holds checkpoint-10, checkpoint-5, and no manifest"):
        folders.newest()
    assert main(["adopt", str(tmp_path)]) == 0
    newest = folders.newest()
    assert newest is not None
    assert newest.step == 10


def test_folders__first_folder_of_a_killed_save_is_no_lost_checkpoint(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    assert folders.newest() is None
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5" / "half").write_bytes(b"x")
    assert Folders(tmp_path).newest() is None


def test_checkpointer__part_of_a_killed_first_save_is_no_lost_checkpoint(tmp_path: Path) -> None:
    program = f"""
import os
from perdure.checkpoint import Checkpointer
from perdure.checkpoint.format import manifest
manifest.write = lambda *_: os._exit(9)
Checkpointer({str(tmp_path)!r}).save(3, [1])
"""
    killed = subprocess.run([sys.executable, "-c", program], timeout=scaled(60), check=False)
    assert killed.returncode == 9
    assert list(tmp_path.glob("checkpoint-*-0of1-*.safetensors"))
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load() is None
        checkpointer.save(4, [2])
        checkpointer.wait()
    shutil.rmtree(tmp_path / ".perdure")
    with pytest.raises(CheckpointUnavailable):
        Checkpointer(tmp_path).load()


@pytest.mark.parametrize("what", ["part", "manifest", "mark"])
@pytest.mark.parametrize("becomes", ["pipe", "folder"])
def test_checkpointer__pipe_or_folder_in_the_place_of_a_file_is_damage(
    tmp_path: Path, restart: Restart, what: str, becomes: str
) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
    (path,) = {
        "part": tmp_path.glob(f"checkpoint-{2:012d}-*"),
        "manifest": (tmp_path / ".perdure").glob(f"checkpoint-{2:012d}-*.json"),
        "mark": (Path(f"{one}.damaged") for one in (tmp_path / ".perdure").glob(f"checkpoint-{2:012d}-*.json")),
    }[what]
    path.unlink(missing_ok=True)
    os.mkfifo(path) if becomes == "pipe" else path.mkdir()
    restart()
    assert Checkpointer(tmp_path).load() == {"step": 2 if what == "mark" else 1}


def test_checkpointer__digest_of_an_unknown_kind_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"step": 1})
        real = part_files.write_part

        def write(*args: object) -> object:
            record = real(*args)  # type: ignore[arg-type]
            return type(record)(record.path, record.size, record.digest, "sha1024", record.sample)

        monkeypatch.setattr(part_files, "write_part", write)
        checkpointer.save(2, {"step": 2})
        assert checkpointer.load() == {"step": 1}
        assert checkpointer.last_result is not None
        assert "unknown kind" in checkpointer.last_result.skipped[0][1]


def test_mark__repaired_within_the_same_second_is_read_again(tmp_path: Path, restart: Restart) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step})
    (part,) = tmp_path.glob(f"checkpoint-{2:012d}-*")
    whole = part.read_bytes()
    second = 1_800_000_000 * 10**9
    part.write_bytes(whole[:-1] + b"?")
    os.utime(part, ns=(second, second))
    assert Checkpointer(tmp_path).load() == {"step": 1}
    part.write_bytes(whole)
    os.utime(part, ns=(second + 1000, second + 1000))
    restart()
    assert Checkpointer(tmp_path).load() == {"step": 2}


def test_folders__files_added_later_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = Folders(tmp_path)
    with folders.saving(1) as path:
        Path(path, "model").write_bytes(b"x")
    Path(path, "eval_results.json").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING):
        newest = folders.newest()
    assert newest is not None
    assert newest.step == 1
    assert "added after its commit and are not verified: checkpoint-1/eval_results.json" in caplog.text
