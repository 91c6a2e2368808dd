"""The temporary folders of launches: removed at the end, and after a kill by the next launch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.files.packing_folder import packing_folder
from support.helpers.timing import wait_until

HOLD = """
import sys
from perdure.sdk.files.packing_folder import packing_folder
with packing_folder() as folder:
    (folder / "0.tar.gz").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def launch() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that is packing, and its folder."""
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_packing_folder__is_removed_at_the_end(temporary: Path) -> None:
    with packing_folder() as folder:
        (folder / "0.tar.gz").touch()
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_packing_folder__of_a_killed_launch_is_removed_by_the_next(
    launch: tuple[subprocess.Popen[str], Path], number: signal.Signals
) -> None:
    process, left = launch
    process.send_signal(number)
    process.wait()
    assert (left / "0.tar.gz").exists(), "the test is about its removal"
    with packing_folder():
        assert not left.exists()


def test_packing_folder__of_a_living_launch_is_kept(launch: tuple[subprocess.Popen[str], Path]) -> None:
    process, kept = launch
    process.send_signal(signal.SIGSTOP)
    with packing_folder() as own:
        assert (kept / "0.tar.gz").exists()
        with packing_folder():
            assert own.exists(), "another launch of this process"
    process.send_signal(signal.SIGCONT)
    assert process.stdin is not None
    process.stdin.close()
    wait_until(lambda: not kept.exists(), "the end of the other launch", 10)


def test_packing_folder__leaves_links_and_files_alone(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (temporary / "perdure-upload-link").symlink_to(precious)
    (temporary / "perdure-upload-file").touch()
    with packing_folder():
        pass
    assert precious.is_dir()
    assert sorted(os.listdir(temporary)) == ["perdure-upload-file", "perdure-upload-link", "precious"]
