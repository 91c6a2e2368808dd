"""The exit code and the last words of the controller's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.helpers.timing import scaled


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
