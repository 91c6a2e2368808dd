"""Whose lease is given back by who comes after: only that of a daemon which is certain to be dead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller import predecessor
from perdure.controller.clock import SystemClock
from perdure.controller.leases import Lease


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    (made / "controller.lock").touch()
    return made


def begun(database: Engine, home: Path) -> Lease:
    """The lease of a daemon on `home`, which never ends it."""
    lease = Lease(database, SystemClock(), alone=False, length_s=1000.0)
    predecessor.succeed(home, lease, "http://here")
    return lease


def test_who_has_the_same_lock_gives_back_the_lease_of_the_one_before(database: Engine, home: Path) -> None:
    assert begun(database, home).others() == 0
    assert begun(database, home).others() == 0
    assert begun(database, home).others() == 0


def test_that_of_a_copied_home_may_live(database: Engine, home: Path, tmp_path: Path) -> None:
    begun(database, home)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert begun(database, copy).others() == 1
    assert begun(database, copy).others() == 1, "its own predecessor is dead, the one that was copied may live"


def test_that_of_another_computer_or_of_an_earlier_start_may_live(
    database: Engine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(database, home)
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(predecessor, "_BOOT", boot)
    assert begun(database, home).others() == 1, "a computer that does not tell"
    boot.write_text("another\n")
    assert begun(database, home).others() == 2


@pytest.mark.parametrize("said", ["", "{", "[]", '{"owner": 1}', '{"lock": null, "owner": "x"}'])
def test_a_note_that_can_not_be_read_tells_nothing(database: Engine, home: Path, said: str) -> None:
    first = begun(database, home)
    (home / "lease.json").write_text(said)
    assert begun(database, home).others() == 1
    first.end()
