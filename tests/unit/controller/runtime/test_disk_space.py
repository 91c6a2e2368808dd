"""Errors of a full disk."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.controller.runtime.disk_space import disk_advice, is_disk_error


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (sqlite_error(sqlite3.SQLITE_FULL), True),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), True),
        (sqlite_error(sqlite3.SQLITE_NOTADB), False),
        (ValueError("full"), False),
    ],
)
def test_disk_error__is_recognized_by_its_code(error: Exception, expected: bool) -> None:
    assert is_disk_error(error) is expected


def test_disk_error__is_recognized_as_a_cause() -> None:
    wrapper = RuntimeError("the daemon did not start")
    wrapper.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_error(wrapper)


def test_advice__names_the_folder_and_its_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**9, 10**9, 2_500_000))
    assert disk_advice(tmp_path).startswith(f"{tmp_path} has 2.5 MB of free space; delete other files")


def test_advice__of_a_folder_that_does_not_exist_names_its_parent(tmp_path: Path) -> None:
    assert disk_advice(tmp_path / "a" / "b").startswith(f"{tmp_path} has ")


def test_advice__with_free_space_left_suspects_a_quota_or_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 0, 10**12))
    assert "check the quota of this user" in disk_advice(tmp_path)
