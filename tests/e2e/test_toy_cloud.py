"""A job runs on a cloud that another package provides: the example `examples/toy_cloud`, installed next to Perdure."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.helpers import cloud_packages

EXAMPLE = Path(__file__).parents[2] / "examples/toy_cloud"
TASK = "name: hello\nresources: {infra: toy}\nrun: echo hello from rank $SKYPILOT_NODE_RANK\n"


def test_job__runs_on_a_cloud_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, site = tmp_path / "home", tmp_path / "site"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    cloud_packages.install(
        site,
        monkeypatch,
        package=project["name"],
        modules={"toy_cloud": (EXAMPLE / "toy_cloud.py").read_text()},
        clouds=project["entry-points"]["perdure.clouds"],
    )
    home.mkdir()
    (home / "config.yaml").write_text("toy: {capacity: 1}\n")
    (tmp_path / "task.yaml").write_text(TASK)
    environ = {**os.environ, "PERDURE_HOME": str(home), "PYTHONPATH": str(site)}

    def perdure(*arguments: str) -> str:
        command = [sys.executable, "-m", "perdure.cli", *arguments]
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        output = perdure("jobs", "launch", "task.yaml", "-y")
        assert "hello from rank 0" in output
        assert "ended: COMPLETED" in output
        assert len(list((home / "toy").glob("toy-*/machine.json"))) == 1
    finally:
        perdure("controller", "stop")
