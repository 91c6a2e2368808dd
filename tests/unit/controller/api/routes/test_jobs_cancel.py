"""A cancel is durable when its response is sent. One that cannot be recorded has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import OperationalError

from perdure.controller.api.access.permissions import ALL, Caller
from perdure.controller.api.routes import jobs as api
from perdure.controller.peers.peer_messages import InboxReader
from perdure.controller.store.records.peer_messages import PeerMessages
from unit.controller.world import World

FULL = OperationalError("COMMIT", None, Exception("database or disk is full"))


def cancel(world: World, database: Engine | SimpleNamespace, *ids: int) -> dict[str, Any]:
    """Call the route on a daemon whose reconciler handles no event meanwhile."""
    context: Any = SimpleNamespace(
        database=database,
        clock=world.clock,
        inbox=world.inbox,
        peer_inbox=InboxReader(world.database, "one", world.inbox.submit),
        settings=SimpleNamespace(timeouts=SimpleNamespace(drain_timeout_s=0.0)),
        time_scale=SimpleNamespace(speed=1.0),
    )
    return api.cancel(Caller(context, "admin", ALL), api.CancelBody(ids=list(ids)))


def message_count(world: World) -> int:
    with world.database.connect() as conn:
        return len(conn.execute(select(PeerMessages.c.id)).all())


def test_cancel__is_durable_while_the_reconciler_is_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_CANCEL_VISIBLE_TIMEOUT_S", 0.0)
    job = world.submit()
    world.run(job)
    assert cancel(world, world.database, job, 999) == {"cancelled": [job], "finished": [], "unknown": [999]}
    assert (message_count(world), world.job(job)["status"]) == (1, "RUNNING")
    world.pass_time(60)
    assert (message_count(world), world.job(job)["status"]) == (0, "CANCELLED")


def test_cancel__has_no_effect_if_it_cannot_be_recorded(world: World) -> None:
    @contextmanager
    def full() -> Iterator[Connection]:
        with world.database.connect() as conn:
            yield conn
        raise FULL

    job = world.submit()
    world.run(job)
    with pytest.raises(OperationalError, match="disk is full"):
        cancel(world, SimpleNamespace(connect=world.database.connect, begin=full), job)
    world.pass_time(60)
    assert (message_count(world), world.job(job)["status"]) == (0, "RUNNING")
