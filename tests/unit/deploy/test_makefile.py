"""What `make` installs, and how it shows that it installs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A folder with a `pip` that prints what pip prints, and ends with the status in `status`."""
    (tmp_path / "status").write_text("0")
    pip = tmp_path / "pip"
    pip.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >{tmp_path}/arguments\n'
        "echo 'Collecting numpy>=1.26'\necho '  Downloading numpy'\necho 'Collecting click'\n"
        f"echo 'Installing collected packages: click, numpy'\nexit $(cat {tmp_path}/status)\n"
    )
    pip.chmod(0o755)
    return tmp_path


def install(bin_folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/install.sh"), str(bin_folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_install__names_each_package_as_it_comes(bin_folder: Path) -> None:
    done = install(bin_folder, "demo", "--no-compile")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "  package 1: numpy>=1.26\n  package 2: click\n  unpacking 2 packages\n"
    assert (bin_folder / "arguments").read_text().split()[-3:] == ["--no-compile", "-e", ".[demo]"]


def test_install__fails_with_the_last_lines_of_pip(bin_folder: Path) -> None:
    (bin_folder / "status").write_text("1")
    done = install(bin_folder, "dev")
    assert done.returncode == 1
    assert "Installing collected packages: click, numpy" in done.stderr
    assert "perdure: the installation failed" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("target", "extras"), [("demo", "demo"), ("check", "dev")])
def test_make__installs_what_a_target_needs(tmp_path: Path, target: str, extras: str) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path}/venv", "PYTHON=python3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    installs = [
        line.split("#")[0].split()[2] for line in done.stdout.splitlines() if line.startswith("scripts/install")
    ]
    assert installs == [extras]
