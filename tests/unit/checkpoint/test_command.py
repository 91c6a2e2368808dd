"""`python -m perdure.checkpoint`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from perdure.checkpoint import Checkpointer, save_checkpoint
from perdure.checkpoint import __main__ as command


@pytest.fixture(autouse=True)
def _saved(save_dir):
    @save_checkpoint(save_dir, checkpoint_prefix="exp")
    def save(step):
        (save_dir / f"model_{step}.pt").write_bytes(bytes(2048))
        (save_dir / f"optimizer_{step}.pt").write_bytes(bytes(10))

    save(7)
    save(12)


def table(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", ["ls", "verify"])
def test_all_good(save_dir, capsys, name):
    assert command.main([name, str(save_dir)]) == 0
    header, newest, oldest = table(capsys)
    assert header == ["STEP", "PREFIX", "FILES", "SIZE", "SAVED", "STATE", "WHY"]
    assert newest[:5] == ["12", "exp", "2", "2.0", "KiB"]
    assert newest[-1] == oldest[-1] == "committed"


def test_only_verify_reads_content(save_dir, capsys):
    (save_dir / "model_12.pt").write_bytes(bytes(2047) + b"x")
    assert command.main(["ls", str(save_dir)]) == 0
    capsys.readouterr()
    assert command.main(["verify", str(save_dir)]) == 1
    assert "damaged    model_12.pt differs from what was saved" in capsys.readouterr().out


def test_ls_sees_what_sizes_tell(save_dir, capsys):
    (save_dir / "model_12.pt").unlink()
    assert command.main(["ls", str(save_dir)]) == 1
    assert "model_12.pt is missing" in capsys.readouterr().out


def test_prefix_and_strays(save_dir, capsys):
    (save_dir / "model_99.pt").write_bytes(b"half")
    assert command.main(["ls", str(save_dir), "--prefix", "other"]) == 0
    shown = capsys.readouterr().out
    assert f"no checkpoints in {save_dir}" in shown
    assert "1 files belong to none" in shown
    assert "model_99.pt" in shown


def test_wrong_usage(save_dir, capsys):
    assert command.main(["ls", str(save_dir / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    for arguments in ([], ["mend", "."], ["ls"]):
        with pytest.raises(SystemExit) as raised:
            command.main(arguments)
        assert raised.value.code == 2


def test_as_a_module(save_dir):
    done = subprocess.run(
        [sys.executable, "-m", "perdure.checkpoint", "verify", save_dir],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "12" in done.stdout


def test_json_for_scripts(save_dir, capsys):
    assert command.main(["ls", str(save_dir), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["state"], row["size"]) for row in rows] == [
        (12, "committed", 2058),
        (7, "committed", 2058),
    ]


def test_prune_says_what_it_would_remove_and_removes_it(save_dir, capsys):
    assert command.main(["prune", str(save_dir), "--last", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would remove exp step 7\n"
    assert (save_dir / "model_7.pt").exists()
    assert command.main(["prune", str(save_dir), "--last", "1"]) == 0
    assert capsys.readouterr().out == "removed exp step 7\n"
    assert sorted(path.name for path in save_dir.glob("*.pt")) == ["model_12.pt", "optimizer_12.pt"]
    assert command.main(["prune", str(save_dir), "--last", "0"]) == 2
    assert "last must be at least 1" in capsys.readouterr().err


def test_prune_reads_what_stays_before_anything_goes(save_dir, capsys):
    damaged = save_dir / "model_12.pt"
    damaged.write_bytes(bytes(2047) + b"x")
    for how, goes in (("size", [7]), ("full", [])):
        assert command.main(["prune", str(save_dir), "--last", "1", "--dry-run", "--how", how]) == 0
        assert [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()] == goes
    assert command.main(["prune", str(save_dir), "--last", "1"]) == 0
    assert (save_dir / "model_7.pt").exists()
    assert damaged.exists()


def test_prune_can_keep_the_best(tmp_path, capsys):
    with Checkpointer(tmp_path) as checkpointer:
        for step, loss in enumerate((3, 1, 2, 4)):
            checkpointer.save(step, {}, metrics={"loss": loss})
    arguments = ["prune", str(tmp_path), "--last", "1", "--dry-run", "--best", "1"]
    for mode, goes in (("min", [2, 0]), ("max", [2, 1, 0])):
        assert command.main([*arguments, "--metric", "loss", "--mode", mode]) == 0
        assert [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()] == goes
    assert command.main(arguments) == 2
    assert "needs the name of the metric" in capsys.readouterr().err


def test_watch_tells_changes_until_interrupted(save_dir, capsys, monkeypatch):
    def pause(_seconds):
        if (save_dir / "model_7.pt").exists():
            (save_dir / "model_7.pt").unlink()
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", pause)
    assert command.main(["watch", str(save_dir)]) == 0
    lines = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["7", "12", "7"]
    assert lines[-1][-3:] == ["model_7.pt", "is", "missing"]
