"""Taking over the home of a dead daemon."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller.peers import home_restart
from perdure.controller.peers.lease import Lease
from perdure.controller.runtime.clock import SystemClock


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    (made / "controller.lock").touch()
    return made


def start_lease(database: Engine, home: Path) -> Lease:
    """Start the lease of a daemon on `home` that never releases it."""
    lease = Lease(database, SystemClock(), alone=False, duration_s=1000.0)
    home_restart.take_over_home(home, lease, "http://here")
    return lease


def test_take_over_home__releases_the_lease_of_the_previous_daemon(database: Engine, home: Path) -> None:
    assert start_lease(database, home).live_peers() == 0
    assert start_lease(database, home).live_peers() == 0
    assert start_lease(database, home).live_peers() == 0


def test_take_over_home__keeps_the_lease_of_a_copied_home(database: Engine, home: Path, tmp_path: Path) -> None:
    start_lease(database, home)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    assert start_lease(database, copy).live_peers() == 1
    assert start_lease(database, copy).live_peers() == 1, (
        "the previous daemon of the copy is dead, that of the original may be alive"
    )


def test_take_over_home__keeps_leases_of_other_computers_and_boots(
    database: Engine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_lease(database, home)
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(home_restart, "_BOOT", boot)
    assert start_lease(database, home).live_peers() == 1, "a computer without a boot id"
    boot.write_text("another\n")
    assert start_lease(database, home).live_peers() == 2


@pytest.mark.parametrize("record", ["", "{", "[]", '{"owner": 1}', '{"lock": null, "owner": "x"}'])
def test_take_over_home__ignores_an_unreadable_record(database: Engine, home: Path, record: str) -> None:
    first = start_lease(database, home)
    (home / "lease.json").write_text(record)
    assert start_lease(database, home).live_peers() == 1
    first.release()
