"""What the controller serves to nodes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import perdure.agent
from perdure.controller.clouds.bootstrap.artifacts import build_agent, build_artifacts, find_rclone


def test_agent_zipapp__is_reproducible(tmp_path: Path) -> None:
    first, second = build_agent(tmp_path / "a"), build_agent(tmp_path / "b")
    assert first.digest == second.digest == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.path == tmp_path / "a" / first.digest
    assert os.listdir(tmp_path / "a") == [first.digest]


def test_agent_zipapp__holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_agent(tmp_path).path).namelist()
    root = Path(perdure.agent.__path__[0]).parent
    sources = {f"perdure/{p.relative_to(root)}" for p in root.rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources | {"__main__.py"}
    assert not [name for name in names if "__pycache__" in name]


def test_agent_zipapp__runs(tmp_path: Path) -> None:
    agent = build_agent(tmp_path)
    done = subprocess.run([sys.executable, agent.path], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PERDURE_ENDPOINT is not set" in done.stderr


def test_rclone__is_stored_by_digest_and_executable(tmp_path: Path) -> None:
    if find_rclone() is None:
        pytest.skip("no rclone on this machine")
    built = build_artifacts(tmp_path)
    assert set(built) == {"agent", "rclone"}
    again = build_artifacts(tmp_path)
    assert again == built
    assert sorted(os.listdir(tmp_path)) == sorted(a.digest for a in built.values())
    assert subprocess.run([built["rclone"].path, "version"], capture_output=True, check=True).stdout.startswith(
        b"rclone v"
    )


@pytest.mark.parametrize("says", ["rclone v1.60.1-DEV", "gibberish", "rclone v0.99"])
def test_rclone__is_ignored_when_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    fake = tmp_path / "rclone"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_rclone() is None
    fake.write_text("#!/bin/sh\necho 'rclone v1.68.0'\n")
    assert find_rclone() == fake


def test_agent_version__is_the_distributions() -> None:
    from importlib.metadata import version

    assert version("perdure") == perdure.agent.VERSION
