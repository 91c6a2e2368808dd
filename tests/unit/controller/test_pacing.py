"""The pace of a controller's time: kept for good once it is faster than the world's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from perdure.controller.clock import REAL_TIME, Pace
from perdure.controller.pacing import pace_of, paced
from perdure.controller.settings import Settings, SettingsError
from perdure.controller.store.database import open_database
from perdure.recovery.job import Limits


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, sections={"local": {}})


@pytest.fixture
def conn(settings: Settings) -> Iterator[Connection]:
    database = open_database(settings.url)
    with database.begin() as conn:
        yield conn
    database.dispose()


def test_time_is_the_worlds_until_a_trace_is_played(conn: Connection, settings: Settings) -> None:
    assert pace_of(conn, settings, None, 100.0) == REAL_TIME
    assert pace_of(conn, settings, 60.0, 200.0) == Pace(200.0, 60.0)


def test_the_next_controller_goes_on_at_the_same_pace(conn: Connection, settings: Settings) -> None:
    begun = pace_of(conn, settings, 600.0, 1_800_000_000.25)
    assert pace_of(conn, settings, 600.0, 1_800_000_009.0) == begun


@pytest.mark.parametrize("speed", [None, 60.0])
def test_stored_time_does_not_run_otherwise(conn: Connection, settings: Settings, speed: float | None) -> None:
    pace_of(conn, settings, 600.0, 100.0)
    with pytest.raises(SettingsError, match="600 times as fast"):
        pace_of(conn, settings, speed, 200.0)


def test_clouds_that_live_in_real_time_are_refused_beside_it(conn: Connection, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="aws lives in real time"):
        pace_of(conn, Settings(tmp_path, sections={"local": {}, "aws": {}}), 60.0, 100.0)


def test_several_controllers_keep_the_worlds_time(conn: Connection, tmp_path: Path) -> None:
    shared = Settings(tmp_path, database_url="postgresql://x/y")
    with pytest.raises(SettingsError, match="several controllers"):
        pace_of(conn, shared, 60.0, 100.0)


def test_what_machines_need_lasts_as_long_as_in_the_world() -> None:
    limits = paced(Limits(), Pace(0.0, 60.0))
    assert limits.drain_s == 60 * Limits().drain_s
    assert limits.backoff_cap_s == Limits().backoff_cap_s
