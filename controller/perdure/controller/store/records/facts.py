"""Facts about the database itself: small named values that every controller on it shares."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, select, update

from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.tables import Meta

Metas = Meta.__table__  # type: ignore[attr-defined]


def get_or_create(conn: Connection, name: str, default: str) -> str:
    """The value of the fact `name`; `default` is stored if there is none."""
    conn.execute(insert_into(conn, Metas).values(name=name, value=default).on_conflict_do_nothing())
    return str(conn.execute(select(Metas.c.value).where(Metas.c.name == name)).scalar_one())


def get(conn: Connection, name: str) -> str | None:
    """The value of the fact `name`; None if there is none."""
    value = conn.execute(select(Metas.c.value).where(Metas.c.name == name)).scalar()
    return None if value is None else str(value)


def get_all(conn: Connection, names: Collection[str]) -> dict[str, str]:
    """The values of those of these facts that exist."""
    rows = conn.execute(select(Metas.c.name, Metas.c.value).where(Metas.c.name.in_(names))) if names else ()
    return {str(name): str(value) for name, value in rows}


def lock(conn: Connection, name: str, *, shared: bool = False) -> str | None:
    """`get`, and on PostgreSQL keep others from changing the fact until the transaction ends. `shared`: they may also
    lock it in this way. SQLite has one writer at a time anyway."""
    query = select(Metas.c.value).where(Metas.c.name == name).with_for_update(read=shared)
    value = conn.execute(query).scalar()
    return None if value is None else str(value)


def set(conn: Connection, name: str, value: str) -> None:
    """Store `value` as the fact `name`."""
    if get_or_create(conn, name, value) != value:
        conn.execute(update(Metas).where(Metas.c.name == name).values(value=value))


def remove(conn: Connection, name: str) -> str | None:
    """Delete the fact `name` and return its value; None if there is none. Of several callers, one gets the value."""
    value = conn.execute(delete(Metas).where(Metas.c.name == name).returning(Metas.c.value)).scalar()
    return None if value is None else str(value)


def with_prefix(conn: Connection, prefix: str) -> dict[str, str]:
    """The facts whose names begin with `prefix`, which ends in a dot: name → value."""
    beyond = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    rows = conn.execute(select(Metas.c.name, Metas.c.value).where(Metas.c.name >= prefix, Metas.c.name < beyond))
    return {str(name): str(value) for name, value in rows}
