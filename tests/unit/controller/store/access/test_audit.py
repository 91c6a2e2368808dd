"""The audit log: append-only, filtered, pruned."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, delete, text
from sqlalchemy.exc import DBAPIError

from perdure.controller.store.access import audit
from perdure.controller.store.access.audit import Actor, AuditFilter, Deed


def add(database: Engine, *deeds: tuple[str, str, float]) -> None:
    """(user, action, time)"""
    with database.begin() as conn:
        conn.execute(delete(audit.Audit))
        audit.record_all(conn, [(Deed(Actor(user), action), at) for user, action, at in deeds])


def test_audit__refuses_changes(database: Engine) -> None:
    add(database, ("ada", "job.cancel", 1.0))
    with pytest.raises(DBAPIError, match="append-only"), database.begin() as conn:
        conn.execute(text("UPDATE audit SET action = 'nothing'"))
    with database.connect() as conn:
        assert [row.action for row in audit.latest(conn, AuditFilter())] == ["job.cancel"]


def test_audit__is_filtered(database: Engine) -> None:
    add(database, ("ada", "job.cancel", 1.0), ("ada", "job_x", 2.0), ("bob", "job.submit", 3.0))

    def found(**wanted: object) -> list[float]:
        with database.connect() as conn:
            return [row.at for row in audit.latest(conn, AuditFilter(**wanted))]  # type: ignore[arg-type]

    assert found() == [3.0, 2.0, 1.0]
    assert found(user="ada") == [2.0, 1.0]
    assert found(action="job.") == [3.0, 1.0]
    assert found(action="job.cancel") == [1.0]
    assert found(since=2.0) == [3.0, 2.0]
    assert found(outcome="denied") == []


def test_audit__cuts_what_callers_choose(database: Engine) -> None:
    add(database, ("a" * 5000, "b" * 5000, 1.0))
    with database.connect() as conn:
        (row,) = audit.latest(conn, AuditFilter())
    assert (len(row.user), len(row.action)) == (200, 200)


def test_audit__is_pruned(database: Engine) -> None:
    add(database, ("ada", "a", 1.0), ("ada", "b", 2.0), ("ada", "c", 3.0))
    with database.begin() as conn:
        assert audit.delete_before(conn, 3.0, 1) == 1
        assert audit.delete_before(conn, 3.0, 10) == 1
        assert audit.delete_before(conn, 3.0, 10) == 0
        assert [row.action for row in audit.latest(conn, AuditFilter())] == ["c"]
