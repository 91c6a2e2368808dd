"""A cancel is safe when it is answered, whatever the reconciler is doing; where it can not be written it is void."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from perdure.controller.api import jobs as api
from perdure.controller.mail import Incoming
from perdure.controller.store.letters import Letters

FULL = OperationalError("COMMIT", None, Exception("database or disk is full"))


def cancel(world: Any, database: Any, *ids: int) -> dict[str, Any]:
    """As the route does it, of a daemon whose reconciler takes no turn meanwhile."""
    daemon: Any = SimpleNamespace(
        database=database,
        clock=world.clock,
        reconciler=world.reconciler,
        incoming=Incoming(world.database, "one", world.reconciler.post),
        settings=SimpleNamespace(limits=SimpleNamespace(drain_s=0.0)),
        pace=SimpleNamespace(speed=1.0),
    )
    return api.cancel(daemon, api.CancelJobs(ids=list(ids)))


def letters(world: Any) -> int:
    with world.database.connect() as conn:
        return len(conn.execute(select(Letters.c.id)).all())


def test_it_is_safe_though_the_reconciler_is_behind(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_SHOWN_WITHIN_S", 0.0)
    job = world.submit()
    world.run(job)
    assert cancel(world, world.database, job, 999) == {"cancelled": [job], "finished": [], "unknown": [999]}
    assert (letters(world), world.job(job)["status"]) == (1, "RUNNING")
    world.pass_time(60)
    assert (letters(world), world.job(job)["status"]) == (0, "CANCELLED")


def test_where_it_can_not_be_written_nothing_is_done_later(world: Any) -> None:
    @contextmanager
    def full() -> Any:
        with world.database.connect() as conn:
            yield conn
        raise FULL

    job = world.submit()
    world.run(job)
    with pytest.raises(OperationalError, match="disk is full"):
        cancel(world, SimpleNamespace(connect=world.database.connect, begin=full), job)
    world.pass_time(60)
    assert (letters(world), world.job(job)["status"]) == (0, "RUNNING")
