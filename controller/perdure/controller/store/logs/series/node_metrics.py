"""The rows of nodes' metrics: one for each node of an attempt, written again as its series grows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, delete, func, select, tuple_

from perdure.controller.store.engine.database import insert_for
from perdure.controller.store.logs.series.metric_series import MetricSeries
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.tables import NodeMetricsRow

NodeMetrics = NodeMetricsRow.__table__  # type: ignore[attr-defined]

_PLACE = ("job_id", "task_index", "generation", "rank")
_KEY = tuple(NodeMetrics.c[name] for name in _PLACE)


def load(conn: Connection, places: Collection[Place]) -> dict[Place, MetricSeries]:
    """The series of those of these nodes that have one. One that cannot be read is left out."""
    keys = [(*key, rank) for key, rank in places]
    return dict(_series(conn.execute(select(NodeMetrics).where(tuple_(*_KEY).in_(keys)))))


def of_job(conn: Connection, job_id: int, limit: int) -> dict[Place, MetricSeries]:
    """The series of a job's nodes, of at most `limit` nodes: those of the newest attempts."""
    newest = select(NodeMetrics).where(NodeMetrics.c.job_id == job_id)
    order = (NodeMetrics.c.task_index.desc(), NodeMetrics.c.generation.desc(), NodeMetrics.c.rank)
    return dict(_series(conn.execute(newest.order_by(*order).limit(limit))))


def count_of_job(conn: Connection, job_id: int) -> int:
    """How many nodes of the job have a series."""
    return int(conn.execute(select(func.count()).where(NodeMetrics.c.job_id == job_id)).scalar_one())


def encoded_row(place: Place, series: MetricSeries, now: float) -> dict[str, Any]:
    """The row of a node, for `save_all`."""
    key, rank = place
    return {**dict(zip(_PLACE, (*key, rank), strict=True)), "updated_at": now, "data": series.encode()}


def save_all(conn: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows of `encoded_row`, each instead of the one before it."""
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in _PLACE))  # no two writers wait for each other
    if ordered:
        conn.execute(_replace(conn.dialect.name), ordered)


@cache
def _replace(dialect: str) -> Any:
    new = insert_for(dialect, NodeMetrics)
    columns = {name: new.excluded[name] for name in ("updated_at", "data")}
    return new.on_conflict_do_update(index_elements=list(_PLACE), set_=columns)


def delete_before(conn: Connection, at: float, limit: int) -> int:
    """Delete up to `limit` series that were last written before `at`. Returns how many."""
    return _delete(conn, select(*_KEY).where(NodeMetrics.c.updated_at < at).limit(limit))


def delete_beyond(conn: Connection, max_rows: int, limit: int) -> int:
    """Delete up to `limit` of the oldest series, while there are more than `max_rows`. Returns how many."""
    excess = int(conn.execute(select(func.count()).select_from(NodeMetrics)).scalar_one()) - max_rows
    if excess <= 0:
        return 0
    return _delete(conn, select(*_KEY).order_by(NodeMetrics.c.updated_at).limit(min(limit, excess)))


def _delete(conn: Connection, which: Any) -> int:
    # Select first: a transaction with nothing to delete blocks no writer.
    keys = [tuple(row) for row in conn.execute(which)]
    return conn.execute(delete(NodeMetrics).where(tuple_(*_KEY).in_(keys))).rowcount if keys else 0


def _series(rows: Iterable[Any]) -> Iterable[tuple[Place, MetricSeries]]:
    for row in rows:
        try:
            yield ((row.job_id, row.task_index, row.generation), row.rank), MetricSeries.decode(bytes(row.data))
        except ValueError:
            continue  # of a newer version, or damaged: graphs are not worth an error
