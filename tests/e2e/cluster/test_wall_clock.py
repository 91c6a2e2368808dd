"""A daemon whose wall clock is set back keeps its lease, and goes on recovering jobs."""

from __future__ import annotations

import re
from pathlib import Path

from perdure.sdk.connection.discovery import running
from perdure.sdk.connection.health import is_healthy
from support.helpers.controllers import running_controller
from support.helpers.postgres_server import Postgres
from support.wall_clock.settable import SettableWallClock

LEASE_S = 3.0


def test_wall_clock__set_back_stops_nothing(postgres: Postgres, tmp_path: Path) -> None:
    wall_clock = SettableWallClock(tmp_path / "wall-clock")
    wall_clock.set_ahead(0.0)
    url = postgres.new_database()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(
        f"database: {{url: '{url}', lease_duration_s: {LEASE_S}}}\nlocal: {{accelerators: {{V100: 8}}}}\n"
    )

    def lease_until() -> float:
        return float(postgres.sql("SELECT max(lease_until) FROM controller", url.rpartition("/")[2]))

    with running_controller(home, environ=wall_clock.environ) as controller:

        def until_renewed_often() -> None:
            """Longer than a lease that is not renewed."""
            at_least = lease_until() + 3 * LEASE_S
            controller.until(lambda: lease_until() > at_least, "renewals of the lease", 5 * LEASE_S)
            endpoint = running(home)
            assert endpoint is not None
            assert is_healthy(endpoint)

        done = controller.perdure("jobs", "launch", "--detach-run", "--yes", "--infra", "local", "sleep 600")
        match = re.search(r"Job (\d+)", done.stdout + done.stderr)
        assert match, done.stdout + done.stderr
        job = int(match[1])
        controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job runs")
        wall_clock.set_ahead(-30.0)
        until_renewed_often()
        wall_clock.set_ahead(-3600.0)
        until_renewed_often()
        controller.perdure("jobs", "preempt", job, "--kill")
        controller.until(lambda: controller.job(job)["recovery_count"] == 1, "the recovery begins")
        controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job runs again")
        assert controller.job(job)["generation"] == 2
        wall_clock.set_ahead(0.0)
        until_renewed_often()
