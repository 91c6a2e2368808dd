"""A daemon whose wall clock is set back keeps its lease, ticks on, and goes on recovering jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.controller.peers.home.record import HomeRecord
from perdure.sdk.connection.discovery import running
from perdure.sdk.connection.health import is_healthy
from support.helpers.controllers import running_controller
from support.helpers.postgres_server import Postgres
from support.wall_clock.settable import SettableWallClock

LEASE_S = 3.0


@dataclass(frozen=True)
class Database:
    """`setting`: of config.yaml. `ticks`: a number of a home that grows as long as its daemon's ticker runs."""

    setting: str
    ticks: Callable[[Path], float]
    step: float  # how much it grows in more ticks than one


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    if request.param == "sqlite":
        return Database("", lambda home: HomeRecord.load(home).watermark, 2)  # type: ignore[union-attr]
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database()
    name = url.rpartition("/")[2]
    return Database(
        f"database: {{url: '{url}', lease_duration_s: {LEASE_S}}}\n",
        lambda _home: float(postgres.sql("SELECT max(lease_until) FROM controller", name)),
        3 * LEASE_S,  # longer than a lease that is not renewed
    )


@pytest.mark.slow
def test_wall_clock__set_back_stops_nothing(database: Database, tmp_path: Path) -> None:
    wall_clock = SettableWallClock(tmp_path / "wall-clock")
    wall_clock.set_ahead(0.0)
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"{database.setting}local: {{accelerators: {{V100: 8}}}}\n")

    with running_controller(home, environ=wall_clock.environ) as controller:

        def until_ticked_often() -> None:
            at_least = database.ticks(home) + database.step
            controller.until(lambda: database.ticks(home) >= at_least, "more ticks", 60)
            endpoint = running(home)
            assert endpoint is not None
            assert is_healthy(endpoint)

        done = controller.perdure("jobs", "launch", "--detach-run", "--yes", "--infra", "local", "sleep 600")
        match = re.search(r"Job (\d+)", done.stdout + done.stderr)
        assert match, done.stdout + done.stderr
        job = int(match[1])
        controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job runs")
        wall_clock.set_ahead(-30.0)
        until_ticked_often()
        wall_clock.set_ahead(-3600.0)
        until_ticked_often()
        controller.perdure("jobs", "preempt", job, "--kill")
        controller.until(lambda: controller.job(job)["recovery_count"] == 1, "the recovery begins")
        controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job runs again")
        assert controller.job(job)["generation"] == 2
        wall_clock.set_ahead(0.0)
        until_ticked_often()
