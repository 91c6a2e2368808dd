"""Which content of a file was committed."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

import pytest

from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion, have_replaced


def test_file_version__covers_the_time_between_the_last_write_and_its_stat(tmp_path: Path) -> None:
    """A mount sets the time of the last write a moment after close() returned."""
    (tmp_path / "a").write_bytes(b"weights")
    seen = (tmp_path / "a").stat()
    version = FileVersion.from_stat(seen)
    after = time.time_ns()
    assert version.matches(7, seen.st_mtime_ns)
    assert version.matches(7, version.latest_ns)
    assert seen.st_mtime_ns <= version.latest_ns <= after
    assert not version.matches(7, seen.st_mtime_ns - 1), "it was written before"
    assert not version.matches(7, after + 1), "it was written later"
    assert not version.matches(8, seen.st_mtime_ns)
    assert not version.matches(7, None)


def test_file_version__of_an_old_file_covers_one_second(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    os.utime(tmp_path / "a", ns=(0, 5_000_000_000))
    assert FileVersion.from_stat((tmp_path / "a").stat()) == FileVersion(7, 5_000_000_000, 6_000_000_000)


def test_file_version__of_a_file_from_the_future_has_its_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    future = time.time_ns() + 3_600_000_000_000
    os.utime(tmp_path / "a", ns=(0, future))
    assert FileVersion.from_stat((tmp_path / "a").stat()) == FileVersion(7, future, future)


@pytest.mark.parametrize("fields", [None, 7, "1234", [], [1, 2, 3], [1, 2, 3, "4"], [1, 2, 3, True], [1.0, 2, 3, 4]])
def test_file_version__of_anything_else_is_unknown_and_matches_nothing(fields: object) -> None:
    assert FileVersion.from_fields(fields) == UNKNOWN
    assert not UNKNOWN.matches(-1, 0)


OLD, NEW = FileVersion(7, 100, 200), FileVersion(7, 300, 400)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OLD, NEW, True),
        (NEW, OLD, False),
        (OLD, OLD, False),
        (OLD, FileVersion(7, 200, 500), False),  # perhaps the same
        (UNKNOWN, NEW, False),
        (OLD, UNKNOWN, False),
        (OLD._replace(crc32=5), NEW._replace(crc32=5), False),  # touched
        (OLD._replace(crc32=5), NEW._replace(crc32=6), True),
        (OLD._replace(crc32=5), NEW._replace(crc32=6, size=8), False),  # perhaps grown
        (OLD._replace(crc32=5), NEW._replace(crc32=6, size=6), True),
    ],
)
def test_is_replaced_by__something_written_later(old: FileVersion, new: FileVersion, expected: bool) -> None:
    assert old.is_replaced_by(new) is expected
    assert have_replaced({"a": new, "b": None}, {"a": old, "b": None, "c": old}) is expected


def test_have_replaced__needs_a_shared_file() -> None:
    assert not have_replaced({"a": NEW}, {"b": OLD})
    assert not have_replaced({"a": NEW}, {"a": None})


def test_begins__compares_only_as_much_as_there_was(tmp_path: Path) -> None:
    log, text = tmp_path / "log", b"line\n" * 300_000
    version = FileVersion(len(text), 0, 0, zlib.crc32(text))
    for content, expected in ((text, True), (text + b"more", True), (text[:-1], False), (b"x" + text[1:], False)):
        log.write_bytes(content)
        assert version.begins(str(log)) is expected
    assert version.may_begin(len(text) + 1)
    assert not version.may_begin(len(text) - 1)
    assert not version._replace(crc32=-1).may_begin(len(text))
