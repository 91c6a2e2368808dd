"""The timelines of services."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from perdure.controller.store.services.tables import ServiceEventRow

Events = ServiceEventRow.__table__  # type: ignore[attr-defined]
MAX_KEPT = 500


def add(
    conn: Connection,
    service_id: int,
    kind: str,
    now: float,
    *,
    version: int | None = None,
    replica: int | None = None,
    message: str = "",
) -> None:
    """Add an entry. The oldest ones of a service are deleted."""
    row = {"service_id": service_id, "at": now, "kind": kind, "version": version, "replica": replica}
    conn.execute(insert(Events).values(**row, message=message))
    of_service = select(Events.c.id).where(Events.c.service_id == service_id).order_by(Events.c.id.desc())
    oldest = conn.execute(of_service.offset(MAX_KEPT).limit(1)).scalar()
    if oldest is not None:
        conn.execute(delete(Events).where(Events.c.service_id == service_id, Events.c.id <= oldest))


def newest(conn: Connection, service_id: int, limit: int) -> list[Row[Any]]:
    """The newest entries of a service, oldest first."""
    query = select(Events).where(Events.c.service_id == service_id).order_by(Events.c.id.desc()).limit(limit)
    return list(conn.execute(query))[::-1]
