"""The files that a call wrote are detected by their stamps, so a stamp must change with every write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.checkpoint.format import file_changes
from perdure.checkpoint.format.file_changes import Stamp
from support.helpers.module_time import replace_time

MS = 1_000_000
NOW_NS = 1_800_000_000 * 1000 * MS


@pytest.mark.parametrize(
    ("age_ns", "waited_s"),
    [(0, 0.01), (4 * MS, 0.006), (10 * MS, None), (3_600_000 * MS, None), (-5 * MS, None)],
)
def test_wait_for_clock_tick__after_a_recent_write(
    monkeypatch: pytest.MonkeyPatch, age_ns: int, waited_s: float | None
) -> None:
    """A kernel that stamps files by its tick would give a second write of the same size the same stamp."""
    waits: list[float] = []
    replace_time(monkeypatch, file_changes, time_ns=lambda: NOW_NS)
    replace_time(monkeypatch, file_changes, sleep=waits.append)
    file_changes.wait_for_clock_tick({"old": Stamp(1, 5, 1), "last": Stamp(1, NOW_NS - age_ns, 2)})
    assert waits == ([] if waited_s is None else [waited_s])
    file_changes.wait_for_clock_tick({})


def test_changed__new_grown_replaced_and_rewritten_files(tmp_path: Path) -> None:
    for name in ("same", "grown", "replaced", "rewritten", "removed"):
        (tmp_path / name).write_text("abc")
        os.utime(tmp_path / name, ns=(1, 1))
    before = file_changes.scan(str(tmp_path))
    (tmp_path / "grown").write_text("abcd")
    os.utime(tmp_path / "grown", ns=(1, 1))
    (tmp_path / "aside").write_text("xyz")
    os.utime(tmp_path / "aside", ns=(1, 1))
    os.replace(tmp_path / "aside", tmp_path / "replaced")
    (tmp_path / "rewritten").write_text("abc")
    (tmp_path / "removed").unlink()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "new").write_text("x")
    (tmp_path / "link").symlink_to("same")
    (tmp_path / "a" / ".perdure").mkdir()
    (tmp_path / "a" / ".perdure" / "ours").write_text("x")
    assert list(file_changes.changed(before, file_changes.scan(str(tmp_path)))) == [
        "a/b/new",
        "grown",
        "replaced",
        "rewritten",
    ]


def test_scan__ignored_names_and_folders(tmp_path: Path) -> None:
    for path in ("a.log", "logs/b.txt", "data/c.log", "data/keep"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    assert set(file_changes.scan(str(tmp_path), ["*.log", "logs"])) == {"data/keep"}
