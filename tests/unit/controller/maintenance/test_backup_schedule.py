"""Scheduled backups: when one is due, what happens after a failure, and the section of config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller.maintenance.backup_schedule import (
    RETRY_S,
    BackupConfig,
    BackupSchedule,
    read_backup_config,
)
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import read_settings

CONFIG = BackupConfig("/backups/", 3600.0, 3)


class Backups:
    """Counts the backups that are made; fails with `error` if there is one."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        self.error: str | None = None

    def __call__(self, to: str, keep: int) -> str | None:
        self.made.append((to, keep))
        return self.error


def test_backup__is_due_after_the_interval_in_any_process(database: Engine) -> None:
    clock, backups = ManualClock(1e9), Backups()
    for _ in range(3):  # a daemon that restarts often
        schedule = BackupSchedule(CONFIG, database, clock, backups)
        schedule.tick()
        schedule.tick()
        assert backups.made == [("/backups/", 3)]
        clock.advance(1000.0)
    clock.advance(700.0)
    BackupSchedule(CONFIG, database, clock, backups).tick()
    assert len(backups.made) == 2
    assert schedule.status() == {"to": "/backups/", "last": 1e9 + 3700.0, "error": None}


def test_backup__is_made_when_the_clock_was_set_back(database: Engine) -> None:
    clock, backups = ManualClock(1e9), Backups()
    schedule = BackupSchedule(CONFIG, database, clock, backups)
    schedule.tick()
    clock.advance(-1e6)
    schedule.tick()
    schedule.tick()
    assert len(backups.made) == 2


def test_failed_backup__is_retried_after_a_while(database: Engine) -> None:
    clock, backups = ManualClock(1e9), Backups()
    schedule = BackupSchedule(CONFIG, database, clock, backups)
    backups.error = "no room"
    schedule.tick()
    schedule.tick()
    assert len(backups.made) == 1
    assert schedule.status() == {"to": "/backups/", "last": None, "error": "no room"}
    clock.advance(RETRY_S + 1)
    backups.error = None
    schedule.tick()
    assert len(backups.made) == 2
    assert schedule.status()["error"] is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("backup: {interval: 1h}", "backup.to"),
        ("backup: {to: /x, keep: 0}", "backup.keep"),
        ("backup: {to: /x, keep: true}", "backup.keep"),
        ("backup: {to: /x, interval: soon}", "backup.interval"),
        ("backup: {to: /x, when: 1h}", "backup.when"),
        ("backup: {to: /x}\ndatabase: {url: 'postgresql://x/y'}", "pg_dump"),
    ],
)
def test_backup_config__names_the_wrong_field(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SettingsError, match=error.replace("when", ".*when")):
        read_backup_config(read_settings(tmp_path, {}))


def test_backup_config__has_defaults(tmp_path: Path) -> None:
    assert read_backup_config(read_settings(tmp_path, {})) is None
    (tmp_path / "config.yaml").write_text("backup: {to: /x}")
    assert read_backup_config(read_settings(tmp_path, {})) == BackupConfig("/x/", 86400.0, 7)
