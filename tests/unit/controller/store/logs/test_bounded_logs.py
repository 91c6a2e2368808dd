"""`BoundedLogs`: a log is cut at its limit, and no log is stored while the disk is nearly full."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.controller.store.logs.bounded_logs import END_OF_CUT_LOG, BoundedLogs, DiskReserve, LogHeld
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import LogStore
from unit.controller.store.logs.test_protocol import KEY, make_logs, whole_log

__all__ = ["make_logs"]

LIMIT = 20_000
MARK = b"the log of this node is cut here, because limits.max_log_gib is"


def bounded(make_logs: Callable[[], LogStore], limit: int | None = LIMIT) -> BoundedLogs:
    """A store for which each write is a second after the one before."""
    return BoundedLogs(make_logs(), max_bytes=limit, monotonic=itertools.count().__next__)


@pytest.mark.parametrize("piece", [7, 300, 1000, 100_000])
def test_append__cuts_the_log_at_its_limit_with_a_mark(make_logs: Callable[[], LogStore], piece: int) -> None:
    logs, output, offset = bounded(make_logs), bytes(range(256)) * 100, 0
    while offset < len(output) and offset < END_OF_CUT_LOG:
        offset = logs.append(KEY, 0, offset, output[offset : offset + piece])
    assert offset == END_OF_CUT_LOG, "the node need not send the rest"
    stored = whole_log(logs)
    text, found, end = stored.partition(b"\n[perdure: ")
    assert output.startswith(text)
    assert (found + end).count(MARK) == 1
    assert LIMIT - piece - 300 < len(text) + logs.overhead(KEY, 0) < LIMIT + 300, "rows and index count"
    again = bounded(make_logs)  # after a restart
    assert again.size(KEY, 0) == END_OF_CUT_LOG
    assert again.append(KEY, 0, len(text), output[len(text) :]) == END_OF_CUT_LOG
    assert whole_log(again) == stored


def test_append__stores_a_log_that_fits_as_it_is(make_logs: Callable[[], LogStore]) -> None:
    logs, size = bounded(make_logs), LIMIT - 500
    assert logs.append(KEY, 0, 0, b"x" * size) == size
    assert logs.append(KEY, 1, 0, b"y") == 1, "each node has a limit of its own"
    assert logs.size(KEY, 0) == size
    assert whole_log(logs) == b"x" * size


def test_append_all__cuts_one_log_beside_others(make_logs: Callable[[], LogStore]) -> None:
    logs, other, most = bounded(make_logs), (2, 0, 1), LIMIT - 1000
    writes = [(KEY, 0, 0, b"x" * most), (other, 0, 0, b"o"), (KEY, 0, most, b"x" * 5000), (KEY, 0, most + 5000, b"x")]
    assert list(logs.append_all(writes)) == [most, 1, END_OF_CUT_LOG, END_OF_CUT_LOG]
    assert whole_log(logs).count(MARK) == 1


def test_append__writes_the_mark_that_a_crash_prevented(make_logs: Callable[[], LogStore]) -> None:
    make_logs().append(KEY, 0, 0, b"x" * LIMIT)
    logs = bounded(make_logs)
    assert logs.size(KEY, 0) == LIMIT
    assert logs.append(KEY, 0, LIMIT, b"more") == END_OF_CUT_LOG
    assert whole_log(logs).count(MARK) == 1


def test_short_logs__are_not_measured(make_logs: Callable[[], LogStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """At a restart, the nodes of ten thousand jobs connect: what is far from the limit costs no query."""
    store = make_logs()
    monkeypatch.setattr(type(store), "overhead", None)
    monkeypatch.setattr(type(store), "read_range", None)
    logs = BoundedLogs(store, max_bytes=2**31)
    assert logs.append(KEY, 0, 0, b"x" * 100_000) == 100_000
    assert logs.sizes([(KEY, 0)]) == [100_000]


def test_small_writes__of_a_node_are_held_so_that_they_become_few(make_logs: Callable[[], LogStore]) -> None:
    store, now = make_logs(), [0.0]
    logs = BoundedLogs(store, max_bytes=None, monotonic=lambda: now[0])
    pace = store.small_writes_per_s or 100.0  # in files, each write is as good as a larger one
    output, sent, writes, resend_at = bytes(range(256)) * 8, 0, 0, 0.0
    while sent < len(output):  # a node prints a byte each 10 ms, and sends what it has
        now[0] += 0.01
        printed = min(len(output), round(now[0] * 100))
        if now[0] < resend_at:
            continue
        try:
            sent = logs.append(KEY, 0, sent, output[sent:printed])
            writes += 1
        except LogHeld as held:
            resend_at = now[0] + held.retry_s
    assert whole_log(logs) == output, "nothing is lost"
    seconds = len(output) / 100
    assert writes <= pace * (seconds + 5) + 1
    assert now[0] <= seconds + 1 / pace + 0.05, "nothing waits for long"
    assert logs.append(KEY, 1, 0, b"y") == 1, "each node has a pace of its own"


def test_large_writes__are_never_held(make_logs: Callable[[], LogStore]) -> None:
    logs, piece = BoundedLogs(make_logs(), max_bytes=None, monotonic=lambda: 0.0), b"x" * 4096
    assert [logs.append(KEY, 0, 4096 * number, piece) for number in range(100)][-1] == 409_600


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
