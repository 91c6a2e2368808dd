"""The files of a cluster's jobs: each job sees the snapshot that it was launched with."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers.clusters import Clusters


@pytest.fixture(scope="module")
def files(sky: Clusters) -> Clusters:
    sky.launch("files")
    return sky


def test_snapshot__of_a_running_job_never_changes(files: Clusters, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    (workdir / "code.txt").write_text("first\n")
    first = files.exec(
        "files",
        "echo mine > made.txt; cat code.txt; while [ ! -e ~/go ]; do sleep 0.05; done; cat code.txt made.txt",
        workdir=str(workdir),
    )
    files.until("files", first, "RUNNING")
    files.controller.until(lambda: files.log("files", first) == "first\n", "the first output")
    (workdir / "code.txt").write_text("second\n")
    script = "ls; cat code.txt; echo changed > made.txt"
    assert files.output("files", script, workdir=str(workdir)) == "code.txt\nmade.txt\nsecond\n"
    assert files.output("files", "cat code.txt; touch ~/go") == "second\n", "without a workdir: the newest one"
    files.until("files", first)
    assert files.log("files", first) == "first\nfirst\nmine\n"


def test_snapshot__drops_removed_files_and_keeps_what_jobs_made(files: Clusters, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    (workdir / "package").mkdir(parents=True)
    (workdir / "package/old.txt").write_text("old\n")
    (workdir / "kept.txt").write_text("kept\n")
    assert files.output("files", "cat package/old.txt; echo made > made.txt", workdir=str(workdir)) == "old\n"
    (workdir / "package/old.txt").unlink()
    (workdir / "package").rmdir()
    listed = files.output("files", "ls -d package kept.txt made.txt 2>/dev/null", workdir=str(workdir))
    assert listed.split() == ["kept.txt", "made.txt"]


def test_setup__runs_before_the_first_job_and_is_left_out_by_exec(sky: Clusters, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    (workdir / "in.txt").write_text("1\n")
    launched = sky.launch("prepared", "cat set.txt", setup="cat in.txt > set.txt", workdir=str(workdir))
    assert launched.number is not None
    assert sky.until("prepared", launched.number)["status"] == "SUCCEEDED"
    assert sky.log("prepared", launched.number) == "1\n"
    assert sky.output("prepared", "cat set.txt", setup="echo never > set.txt") == "1\n"
