"""Waiting for the start of the embedded controller: as long as it makes progress, and never blocked by a command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.connection import embedded_start
from perdure.sdk.connection.discovery import is_controller
from perdure.sdk.connection.embedded_start import StartTimeouts
from perdure.sdk.connection.endpoint import NoController
from perdure.sdk.connection.start_lock import StartLock
from support.helpers.timing import scaled, wait_until

SHORT = StartTimeouts(answer_s=0.5, progress_s=0.5, lock_s=0.5, silence_s=0.1, repeat_s=60.0)
SLOW_START = """
import sys
from pathlib import Path
from perdure.sdk.connection.embedded_start import StartTimeouts, start
print(start(Path(sys.argv[1]), StartTimeouts(progress_s=float(sys.argv[2]), silence_s=0.1)).pid)
"""


def command(home, environ, progress_s=60.0):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_START, str(home), str(progress_s)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started_pid(home, others=()):
    def newest():
        with contextlib.suppress(FileNotFoundError):
            pids = {int(pid) for pid in (home / "starts").read_text().split()} - set(others)
            return next(iter(pids), None)
        return None

    return wait_until(newest, "the process of the controller", scaled(60))


@pytest.fixture
def in_process(embedded: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home; controllers that this process starts are the contract server."""
    home, environ = embedded
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    home.mkdir(mode=0o700)
    return home


@pytest.mark.slow
def test_start__waits_while_it_makes_progress(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    home.mkdir(mode=0o700)
    (home / "slow").touch()
    waiting = command(home, environ, progress_s=scaled(3))
    pid = started_pid(home)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=scaled(3) + 2)
    (home / "slow").unlink()
    out, err = waiting.communicate(timeout=scaled(60))
    assert int(out) == pid, err
    assert f"its process is {pid}" in err
    assert "the controller is starting (" in err


def test_start__leaves_a_controller_without_progress_running(in_process: Path) -> None:
    (in_process / "frozen").touch()
    with pytest.raises(NoController, match="has made no progress") as caught:
        embedded_start.start(in_process, SHORT)
    pid = started_pid(in_process)
    assert f"(process {pid})" in str(caught.value)
    assert "controller.stderr.log" in str(caught.value)
    assert is_controller(pid)
    os.kill(pid, signal.SIGCONT)
    assert embedded_start.start(in_process).pid == pid, "the next command finds it"


def test_start__is_not_blocked_by_a_suspended_command(embedded: tuple[Path, dict[str, str]]) -> None:
    home, environ = embedded
    home.mkdir(mode=0o700)
    (home / "slow").touch()
    first = command(home, environ)
    pid = started_pid(home)
    os.kill(first.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    (home / "slow").unlink()
    second = command(home, environ)
    try:
        out, err = second.communicate(timeout=scaled(60))
        assert out.strip(), err
        assert int(out) == started_pid(home, others=[pid])
    finally:
        first.kill()
        first.communicate()


def test_start__waits_for_a_frozen_controller_side_by_side(in_process: Path) -> None:
    (in_process / "frozen").touch()
    with pytest.raises(NoController):
        embedded_start.start(in_process, SHORT)
    errors = []

    def fail():
        try:
            embedded_start.start(in_process, SHORT)
        except NoController as error:
            errors.append(str(error))

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    # One after the other, the lock would be held while they wait.
    with StartLock(in_process).try_acquire() as lock:
        assert lock is not None
    for thread in threads:
        thread.join(timeout=scaled(60))
    assert len(errors) == 4
    assert len((in_process / "starts").read_text().split()) == 1


def test_start__names_the_holder_of_the_lock(in_process: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StartLock(in_process).try_acquire() as lock:
        lock.record()
        with pytest.raises(NoController, match=rf"process {os.getpid()}\) has been about to start") as caught:
            embedded_start.start(in_process, SHORT)
    assert f"kill -9 {os.getpid()}" in str(caught.value)
    assert "waiting for another command" in capsys.readouterr().err


def test_start__refuses_a_lock_that_is_a_named_pipe(in_process: Path) -> None:
    os.mkfifo(in_process / "controller.start.lock")
    with pytest.raises(NoController, match="not a regular file"):
        embedded_start.start(in_process, SHORT)


def test_start__says_that_the_disk_is_full(small_disk: Path) -> None:
    home = small_disk
    (home / "broken").touch()
    with StartLock(home).try_acquire() as lock:
        lock.record()
    fill(home)
    with pytest.raises(NoController, match=r"while it started: the disk is full \(0 KB free\)") as caught:
        embedded_start.start(home, SHORT)
    assert "free some space" in str(caught.value)


def test_start__in_a_home_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoController, match="is not a folder") as caught:
        embedded_start.start(tmp_path / "file", SHORT)
    assert "PERDURE_HOME" in str(caught.value)


def test_start__without_room_for_its_lock_says_so(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(NoController, match="No space left on device") as caught:
        embedded_start.start(small_disk, SHORT)
    assert "free some space" in str(caught.value)


@pytest.fixture
def small_disk(in_process: Path) -> Iterator[Path]:
    """The home, on a disk of 256 KB of its own."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(in_process)], check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield in_process
    subprocess.run(["umount", "--lazy", str(in_process)], check=True)


def fill(folder):
    free = os.statvfs(folder)
    (folder / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises(OSError, match="No space left"):
        (folder / "one more").write_bytes(b"x")


class Ending:
    """A process that has failed, and cannot be waited for at once: the computer is busy."""

    created = 0

    def __init__(self, *_: object, **__: object) -> None:
        type(self).created += 1
        self.pid, self.returncode, self._looks = 2**22 + 1, None, 0

    def poll(self):
        self._looks += 1
        self.returncode = 2 if self._looks > 3 else None
        return self.returncode


def test_start__that_fails_is_not_repeated_while_its_process_is_ending(
    in_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Ending)
    with pytest.raises(NoController, match="ended with exit code 2 while it started"):
        embedded_start.start(in_process, SHORT)
    assert Ending.created == 1
