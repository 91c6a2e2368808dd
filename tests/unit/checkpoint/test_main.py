"""`python -m perdure.checkpoint`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.checkpoint import Checkpointer, save_checkpoint
from perdure.checkpoint import __main__ as command
from support.helpers.module_time import replace_time


@pytest.fixture(autouse=True)
def _saved(save_dir: Path) -> None:
    @save_checkpoint(save_dir, checkpoint_prefix="exp")
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(bytes(2048))
        (save_dir / f"optimizer_{step}.pt").write_bytes(bytes(10))

    save(7)
    save(12)


def table(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", ["ls", "verify"])
def test_command__lists_whole_steps(save_dir: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert command.main([name, str(save_dir)]) == 0
    header, newest, oldest = table(capsys)
    assert header == ["STEP", "PREFIX", "FILES", "SIZE", "SAVED", "STATE", "REASON"]
    assert newest[:5] == ["12", "exp", "2", "2.0", "KiB"]
    assert newest[-1] == oldest[-1] == "committed"


def test_command__only_verify_reads_content(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (save_dir / "model_12.pt").write_bytes(bytes(2047) + b"x")
    assert command.main(["ls", str(save_dir)]) == 0
    capsys.readouterr()
    assert command.main(["verify", str(save_dir)]) == 1
    assert "damaged    model_12.pt differs from what was saved" in capsys.readouterr().out


def test_ls__detects_wrong_sizes(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (save_dir / "model_12.pt").unlink()
    assert command.main(["ls", str(save_dir)]) == 1
    assert "model_12.pt is missing" in capsys.readouterr().out


def test_ls__filters_by_prefix_and_counts_unlisted_files(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (save_dir / "model_99.pt").write_bytes(b"half")
    assert command.main(["ls", str(save_dir), "--prefix", "other"]) == 0
    shown = capsys.readouterr().out
    assert f"no checkpoints in {save_dir}" in shown
    assert "1 files are in no checkpoint" in shown
    assert "model_99.pt" in shown


def test_command__wrong_usage_exits_with_2(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ls", str(save_dir / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    for arguments in ([], ["mend", "."], ["ls"]):
        with pytest.raises(SystemExit) as raised:
            command.main(arguments)
        assert raised.value.code == 2


def test_command__runs_as_a_module(save_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perdure.checkpoint", "verify", save_dir],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "12" in done.stdout


def test_ls__prints_json(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ls", str(save_dir), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["state"], row["size"]) for row in rows] == [
        (12, "committed", 2058),
        (7, "committed", 2058),
    ]


def test_prune__dry_run_names_what_is_then_removed(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["prune", str(save_dir), "--last", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove exp step 7\n"
    assert (save_dir / "model_7.pt").exists()
    assert command.main(["prune", str(save_dir), "--last", "1"]) == 0
    assert capsys.readouterr().out == "removed exp step 7\n"
    assert sorted(path.name for path in save_dir.glob("*.pt")) == ["model_12.pt", "optimizer_12.pt"]
    assert command.main(["prune", str(save_dir), "--last", "0"]) == 2
    assert "last must be at least 1" in capsys.readouterr().err


def test_prune__verifies_what_stays_before_it_removes(save_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = save_dir / "model_12.pt"
    damaged.write_bytes(bytes(2047) + b"x")
    for how, goes in (("size", [7]), ("full", [])):
        assert command.main(["prune", str(save_dir), "--last", "1", "--dry-run", "--verify", how]) == 0
        assert [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()] == goes
    assert command.main(["prune", str(save_dir), "--last", "1"]) == 0
    assert (save_dir / "model_7.pt").exists()
    assert damaged.exists()


def test_prune__keeps_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step, loss in enumerate((3, 1, 2, 4)):
            checkpointer.save(step, {}, metrics={"loss": loss})
    arguments = ["prune", str(tmp_path), "--last", "1", "--dry-run", "--best", "1"]
    for mode, goes in (("min", [2, 0]), ("max", [2, 1, 0])):
        assert command.main([*arguments, "--metric", "loss", "--mode", mode]) == 0
        assert [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()] == goes
    assert command.main(arguments) == 2
    assert "needs the name of the metric" in capsys.readouterr().err


def test_watch__prints_changes_until_interrupted(
    save_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_seconds: float) -> None:
        if (save_dir / "model_7.pt").exists():
            (save_dir / "model_7.pt").unlink()
        else:
            raise KeyboardInterrupt

    replace_time(monkeypatch, command, sleep=pause)
    assert command.main(["watch", str(save_dir)]) == 0
    lines = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["7", "12", "7"]
    assert lines[-1][-3:] == ["model_7.pt", "is", "missing"]
