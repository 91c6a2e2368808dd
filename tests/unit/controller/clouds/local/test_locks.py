"""Locks that show whether their holder lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.controller.clouds.local import locks


def test_lock__is_held_until_the_last_holder_closes(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not locks.is_held(path)
    fd = locks.hold(path)
    assert locks.is_held(path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,))
    os.close(fd)
    assert locks.is_held(path), "the child still holds it"
    child.kill()
    child.wait()
    assert not locks.is_held(path)


def test_is_held__does_not_affect_the_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.hold(path)
    for _ in range(3):
        assert locks.is_held(path)
    with pytest.raises(BlockingIOError):
        locks.hold(path, wait=False)
    os.close(fd)
    os.close(locks.hold(path, wait=False))


def test_hold__waits_for_other_threads(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.hold(path)
    order: list[str] = []
    probed = threading.Event()

    def second() -> None:
        probed.set()
        held = locks.hold(path)
        order.append("second")
        os.close(held)

    thread = threading.Thread(target=second)
    thread.start()
    probed.wait()
    assert not locks.wait_until_free(path, 0.02)
    order.append("first")
    os.close(fd)
    thread.join()
    assert order == ["first", "second"]
    assert locks.wait_until_free(path, 0)
