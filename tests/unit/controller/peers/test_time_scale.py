"""The time scale of a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from perdure.controller.peers.time_scale import load_time_scale, scale_timeouts
from perdure.controller.runtime.clock import REAL_TIME, TimeScale
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.engine.database import open_database
from perdure.recovery.job import Timeouts


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, sections={"local": {}})


@pytest.fixture
def conn(settings: Settings) -> Iterator[Connection]:
    database = open_database(settings.database_address)
    with database.begin() as conn:
        yield conn
    database.dispose()


def test_time_scale__is_real_time_until_a_trace_is_replayed(conn: Connection, settings: Settings) -> None:
    assert load_time_scale(conn, settings, None, 100.0) == REAL_TIME
    assert load_time_scale(conn, settings, 60.0, 200.0) == TimeScale(200.0, 60.0)


def test_time_scale__is_kept_by_the_next_controller(conn: Connection, settings: Settings) -> None:
    first = load_time_scale(conn, settings, 600.0, 1_800_000_000.25)
    assert load_time_scale(conn, settings, 600.0, 1_800_000_009.0) == first


@pytest.mark.parametrize("speed", [None, 60.0])
def test_time_scale__cannot_change(conn: Connection, settings: Settings, speed: float | None) -> None:
    load_time_scale(conn, settings, 600.0, 100.0)
    with pytest.raises(SettingsError, match="600 times as fast"):
        load_time_scale(conn, settings, speed, 200.0)


def test_time_scale__rejects_real_clouds(conn: Connection, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="aws runs in real time"):
        load_time_scale(conn, Settings(tmp_path, sections={"local": {}, "aws": {}}), 60.0, 100.0)


def test_time_scale__rejects_several_controllers(conn: Connection, tmp_path: Path) -> None:
    shared = Settings(tmp_path, database_url="postgresql://x/y")
    with pytest.raises(SettingsError, match="several controllers"):
        load_time_scale(conn, shared, 60.0, 100.0)


def test_scale_timeouts__scales_those_of_machines_only() -> None:
    timeouts = scale_timeouts(Timeouts(), TimeScale(0.0, 60.0))
    assert timeouts.drain_timeout_s == 60 * Timeouts().drain_timeout_s
    assert timeouts.backoff_max_s == Timeouts().backoff_max_s
