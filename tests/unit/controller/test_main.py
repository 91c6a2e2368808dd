"""The exit code and the last words of the controller's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.helpers.timing import scaled, wait_until


def serve(home: Path, stderr: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "perdure.controller", "serve", "--home", str(home)]
    return subprocess.run(
        command, stderr=stderr or subprocess.PIPE, text=True, timeout=scaled(60), check=False, stdin=subprocess.DEVNULL
    )


def test_invalid_configuration__ends_with_2_even_if_standard_error_is_a_file_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("no_such_key: 1\n")
    done = serve(tmp_path)
    assert done.returncode == 2
    assert "no_such_key" in done.stderr
    with open("/dev/full", "wb") as full:
        assert serve(tmp_path, stderr=full.fileno()).returncode == 2


def test_home_that_cannot_be_created__ends_with_2_and_its_name() -> None:
    done = serve(Path("/proc/home"))
    assert done.returncode == 2
    assert "check that /proc/home belongs to you" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk__ends_with_2_and_names_the_free_space(tmp_path: Path) -> None:
    (tmp_path / "controller.tmp").symlink_to("/dev/full")
    done = serve(tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path} has " in done.stderr


def test_existing_home__becomes_private(tmp_path: Path) -> None:
    """One that an operator made for the configuration file, or that a restored backup left open."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "config.yaml").write_text("local: false\n")
    (home / "controller.log").write_text("{}\n")
    for file in home.iterdir():
        file.chmod(0o644)
    command = [sys.executable, "-P", "-m", "perdure.controller", "serve", "--home", str(home)]
    with subprocess.Popen(command, umask=0, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            wait_until((home / "controller.json").exists, "the start of the controller", 60)
            assert (home / "perdure.db-wal").exists()
            open_to_others = {
                str(path.relative_to(tmp_path)): oct(path.stat().st_mode)
                for path in (home, *home.rglob("*"))
                if path.stat().st_mode & 0o077 and path.parent.name != "artifacts"  # programs, the same everywhere
            }
        finally:
            daemon.terminate()
    assert open_to_others == {}


@pytest.mark.parametrize("command", ["serve", "credentials"])
def test_folder_of_other_programs__is_neither_used_nor_closed(tmp_path: Path, command: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "notes.txt").touch(0o644)
    before = {path: path.stat().st_mode for path in (shared, *shared.iterdir())}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "perdure.controller", command, "--home", str(shared)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert done.returncode == 2
    assert f"chmod 700 {shared}" in done.stderr
    assert {path: path.stat().st_mode for path in (shared, *shared.iterdir())} == before
