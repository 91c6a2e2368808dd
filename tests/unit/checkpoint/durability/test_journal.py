"""The lines that the library writes for the agent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.durability import journal


@pytest.fixture
def journal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "_total_steps", None)
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path))
    return tmp_path / "checkpoints.jsonl"


def lines(journal_file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in journal_file.read_text().splitlines()]


def test_total_steps__in_every_line(journal_file: Path, tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "checkpoints", total_steps=40) as checkpoints:
        checkpoints.save(1, {"step": 1})
    assert {line["total_steps"] for line in lines(journal_file)} == {40}


def test_total_steps__absent_if_not_given(journal_file: Path, tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, {"step": 1})
    assert not any("total_steps" in line for line in lines(journal_file))


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_total_steps__rejects_invalid_values(journal_file: Path, tmp_path: Path, steps: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Checkpointer(tmp_path / "checkpoints", total_steps=steps)  # type: ignore[arg-type]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "checkpoints.jsonl").read_text().splitlines()]


def test_journal__records_saves_and_loads(save_dir: Path, run_dir: Path) -> None:
    save = save_checkpoint(save_dir)(lambda step: (save_dir / f"{step}.pt").write_bytes(b"x"))
    save(1)
    save(2)
    load_checkpoint(save_dir)(lambda step: step)()
    lines = lines_of(run_dir)
    assert [(line["step"], line["state"]) for line in lines] == [(1, "committed"), (2, "committed"), (2, "loaded")]
    assert [line.get("files") for line in lines] == [["1.pt"], ["2.pt"], None]
    assert {line.get("directory") for line in lines[:2]} == {str(save_dir)}
    assert all(os.path.exists(line["path"]) and line["path"].startswith(str(save_dir)) for line in lines)
    assert lines[0]["at"] <= lines[1]["at"] <= lines[2]["at"]


def test_journal__records_loads_of_foreign_files(save_dir: Path, run_dir: Path) -> None:
    (save_dir / "model_4.pt").write_bytes(b"x")
    load_checkpoint(save_dir)(lambda step: step)()
    assert [(line["step"], line["state"], line["path"]) for line in lines_of(run_dir)] == [(4, "loaded", str(save_dir))]


def test_journal__linked_bucket_is_durable_at_once(tmp_path: Path, run_dir: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    link = tmp_path / "checkpoint"
    link.symlink_to(bucket)
    mount = {"path": str(link), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}
    (run_dir / "mounts.json").write_text(json.dumps([mount]))
    save = save_checkpoint(link / "run")(lambda step: (link / "run" / f"{step}.pt").write_bytes(b"x"))
    save(1)
    assert [info.state for info in steps(link / "run")] == ["durable"]
    assert [(line["step"], line["state"]) for line in lines_of(run_dir)] == [
        (1, "committed")
    ]  # the agent adds "durable"
    assert load_checkpoint(link / "run")(lambda step: step)() == 1


def test_journal__failure_to_write_does_not_stop_a_save(
    save_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path / "gone"))
    save_checkpoint(save_dir)(lambda step: (save_dir / f"{step}.pt").write_bytes(b"x"))(1)
    assert load_checkpoint(save_dir)(lambda step: step)() == 1
