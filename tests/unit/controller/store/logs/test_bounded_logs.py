"""`BoundedLogs`: a log is cut at its limit, and no log is stored while the disk is nearly full."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.controller.store.logs.bounded_logs import END_OF_CUT_LOG, BoundedLogs, DiskReserve, LogHeld
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import LogStore
from unit.controller.store.logs.test_protocol import KEY, make_logs, whole_log

__all__ = ["make_logs"]

LIMIT = 1000
MARK = b"the log of this node is cut here, because limits.max_log_gib is"


def bounded(make_logs: Callable[[], LogStore]) -> BoundedLogs:
    return BoundedLogs(make_logs(), max_bytes=LIMIT)


@pytest.mark.parametrize("piece", [1, 7, 300, 1000, 5000])
def test_append__cuts_the_log_at_its_limit_with_a_mark(make_logs: Callable[[], LogStore], piece: int) -> None:
    logs, output, offset = bounded(make_logs), bytes(range(256)) * 20, 0
    while offset < len(output) and offset < END_OF_CUT_LOG:
        offset = logs.append(KEY, 0, offset, output[offset : offset + piece])
    assert offset == END_OF_CUT_LOG, "the node need not send the rest"
    stored = whole_log(logs)
    assert stored[:LIMIT] == output[:LIMIT]
    assert stored.count(MARK) == 1
    assert len(stored) < LIMIT + 300
    again = bounded(make_logs)  # after a restart
    assert again.size(KEY, 0) == END_OF_CUT_LOG
    assert again.append(KEY, 0, LIMIT, output[LIMIT:]) == END_OF_CUT_LOG
    assert whole_log(again) == stored


def test_append__stores_a_log_that_fits_as_it_is(make_logs: Callable[[], LogStore]) -> None:
    logs = bounded(make_logs)
    assert logs.append(KEY, 0, 0, b"x" * LIMIT) == LIMIT
    assert logs.append(KEY, 1, 0, b"y") == 1, "each node has a limit of its own"
    assert logs.size(KEY, 0) == LIMIT
    assert whole_log(logs) == b"x" * LIMIT


def test_append_all__cuts_one_log_beside_others(make_logs: Callable[[], LogStore]) -> None:
    logs, other = bounded(make_logs), (2, 0, 1)
    writes = [(KEY, 0, 0, b"x" * 900), (other, 0, 0, b"o"), (KEY, 0, 900, b"x" * 900), (KEY, 0, 1800, b"x")]
    assert list(logs.append_all(writes)) == [900, 1, END_OF_CUT_LOG, END_OF_CUT_LOG]
    assert whole_log(logs).count(MARK) == 1


def test_append__writes_the_mark_that_a_crash_prevented(make_logs: Callable[[], LogStore]) -> None:
    make_logs().append(KEY, 0, 0, b"x" * LIMIT)
    logs = bounded(make_logs)
    assert logs.append(KEY, 0, LIMIT, b"more") == END_OF_CUT_LOG
    assert whole_log(logs).count(MARK) == 1


def test_append__has_no_limit_with_null(tmp_path: Path) -> None:
    logs = BoundedLogs(FileLogStore(tmp_path), max_bytes=None)
    assert logs.append(KEY, 0, 0, b"x" * 10 * LIMIT) == 10 * LIMIT


def test_reserve__holds_logs_until_there_is_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, now = [52], [0.0]
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: (1000, 1000 - free[0], free[0]))
    reserve = DiskReserve(tmp_path, 50, monotonic=lambda: now[0])
    logs = BoundedLogs(FileLogStore(tmp_path), max_bytes=LIMIT, reserve=reserve)
    with pytest.raises(LogHeld):
        logs.append(KEY, 0, 0, b"abc")
    assert logs.size(KEY, 0) == 0
    free[0] = 53
    with pytest.raises(LogHeld):
        logs.append(KEY, 0, 0, b"")
    now[0] += 1.0
    assert logs.append(KEY, 0, 0, b"abc") == 3


@pytest.mark.parametrize(("free", "is_low"), [(99, True), (100, False)])
def test_reserve__is_a_tenth_of_a_small_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_low: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: (1000, 1000 - free, free))
    assert DiskReserve(tmp_path, 2**30).is_low(0) is is_low


def test_reserve__is_checked_again_after_much_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [2**30]
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: (2**31, 2**31 - free[0], free[0]))
    logs = BoundedLogs(
        FileLogStore(tmp_path), max_bytes=None, reserve=DiskReserve(tmp_path, 2**20, monotonic=lambda: 0.0)
    )
    written = [0]

    def write() -> int:
        free[0] = 2**20 + 2**17 - written[0]
        return logs.append(KEY, 0, written[0], b"x" * 2**12)

    def write_all() -> None:
        for _ in range(2**10):
            written[0] = write()

    with pytest.raises(LogHeld):
        write_all()
    assert 2**16 <= written[0] <= 2**18
