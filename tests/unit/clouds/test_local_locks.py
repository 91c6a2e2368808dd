"""Locks that tell who lives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.controller.clouds.local import locks


def test_held_until_the_last_holder_closes(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not locks.is_held(path)
    fd = locks.hold(path)
    assert locks.is_held(path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,))
    os.close(fd)
    assert locks.is_held(path), "the child has it still"
    child.kill()
    child.wait()
    assert not locks.is_held(path)


def test_asking_does_not_disturb_the_holder_nor_let_it_go(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.hold(path)
    for _ in range(3):
        assert locks.is_held(path)
    with pytest.raises(BlockingIOError):
        locks.hold(path, wait=False)
    os.close(fd)
    os.close(locks.hold(path, wait=False))


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.hold(path)
    order: list[str] = []
    asked = threading.Event()

    def second() -> None:
        asked.set()
        held = locks.hold(path)
        order.append("second")
        os.close(held)

    thread = threading.Thread(target=second)
    thread.start()
    asked.wait()
    assert not locks.wait_until_free(path, 0.02)
    order.append("first")
    os.close(fd)
    thread.join()
    assert order == ["first", "second"]
    assert locks.wait_until_free(path, 0)
