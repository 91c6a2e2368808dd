"""How long a daemon believes that it holds its lease."""

from __future__ import annotations

from sqlalchemy import Engine

from perdure.controller.peers.lease import Lease
from perdure.controller.runtime.clock import SystemClock, since_boot


def test_lease__is_measured_by_a_clock_that_includes_suspended_time(database: Engine) -> None:
    lease = Lease(database, SystemClock(), alone=False, duration_s=10.0)
    assert lease.monotonic is since_boot, "`time.monotonic` stands still while the computer is suspended"


def test_lease__expires_by_the_clock_of_this_computer(database: Engine) -> None:
    now = 0.0
    lease = Lease(database, SystemClock(), alone=False, duration_s=10.0, monotonic=lambda: now)
    lease.start("http://here")
    now = 9.9
    assert lease.is_held()
    now = 10.0
    assert not lease.is_held()
