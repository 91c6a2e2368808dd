"""Copies of files that are being written."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from perdure.agent.storage import periodic_flush, snapshot
from perdure.agent.storage.periodic_flush import interval_s


def take(path: Path, target: Path) -> snapshot.Stamp | None:
    return snapshot.take(str(path), str(path), str(target), time.sleep)  # noqa: TID251


def test_take__copies_content_and_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    os.utime(tmp_path / "file", ns=(5_000_000_001, 5_000_000_001))
    assert take(tmp_path / "file", tmp_path / "copy") == snapshot.Stamp(7, 5_000_000_001)
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert (tmp_path / "copy").stat().st_mtime_ns == 5_000_000_001


def test_take__waits_until_a_file_is_closed(tmp_path: Path) -> None:
    file = open(tmp_path / "file", "wb", buffering=0)  # noqa: SIM115
    file.write(b"half of ")

    def finish(_seconds: float) -> None:
        if not file.closed:
            file.write(b"the content")
            file.close()

    taken = snapshot.take(str(tmp_path / "file"), str(tmp_path / "file"), str(tmp_path / "copy"), finish)
    assert taken is not None
    assert (tmp_path / "copy").read_bytes() == b"half of the content"


def test_take__copies_what_a_file_that_stays_open_has(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb", buffering=0) as file:
        file.write(b"line\n")
        assert take(tmp_path / "file", tmp_path / "copy") is not None
        assert (tmp_path / "copy").read_bytes() == b"line\n"


def test_take__copies_no_file_that_was_only_truncated(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb"):
        assert take(tmp_path / "file", tmp_path / "copy") is None
    assert take(tmp_path / "file", tmp_path / "copy") == snapshot.Stamp(0, (tmp_path / "file").stat().st_mtime_ns)


def test_take__never_mixes_two_contents(tmp_path: Path) -> None:
    path, stopped = tmp_path / "file", threading.Event()
    path.write_bytes(b"a" * 3_000_000)

    def write() -> None:
        while not stopped.is_set():
            for letter in (b"a", b"b"):
                with open(path, "r+b") as file:
                    for _ in range(30):
                        file.write(letter * 100_000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            if snapshot.take(str(path), "/not/open", str(tmp_path / "copy"), lambda _seconds: None) is not None:
                copy = (tmp_path / "copy").read_bytes()
                changes = sum(one != other for one, other in zip(copy[::100_000], copy[100_000::100_000], strict=False))
                assert changes <= 1  # one moment of the writer's pass over the file
    finally:
        stopped.set()
        writer.join()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 30.0),
        ({"vfs_write_back": "1s"}, 30.0),
        ({"vfs_write_back": "10m"}, 1200.0),
        ({"vfs_write_back": "10m", "flush_every": "1m30s"}, 90.0),
        ({"flush_every": 5}, 5.0),
        ({"flush_every": "1.5h"}, 5400.0),
        ({"flush_every": "250ms"}, 0.25),
        ({"flush_every": "2d"}, 172800.0),
        ({"flush_every": "off"}, None),
    ],
)
def test_interval__follows_the_options(options: dict[str, object], expected: float | None) -> None:
    assert interval_s(options) == expected


@pytest.mark.parametrize("name", ["a.tmp", ".tmp-a", "tmp_a", "a.tmp.123", "a.pt.part", "step-tmp-4", "a.incomplete"])
def test_temporary_names__are_recognised(name: str) -> None:
    assert periodic_flush._TEMPORARY.search(name)


@pytest.mark.parametrize("name", ["events.out.tfevents.1", "part-00001", "temperature.csv", "attempt", "a.tmpl"])
def test_temporary_names__are_not_guessed(name: str) -> None:
    assert not periodic_flush._TEMPORARY.search(name)
