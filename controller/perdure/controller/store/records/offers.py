"""The offers of each region as they were fetched from its cloud, and which daemon fetches a region now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Float, and_, bindparam, delete, or_, select

from perdure.controller.store.engine.database import DATABASE_NOW, as_of, insert_for
from perdure.controller.store.tables import RegionOffersRow

RegionOffers = RegionOffersRow.__table__  # type: ignore[attr-defined]

FORMAT_VERSION = 1
"""The version of the payload. Increment it for every change that an older version cannot read."""
_RETENTION_S = 30 * 86_400.0

_OF_CLOUD = and_(
    RegionOffers.c.cloud == bindparam("of_cloud"),
    RegionOffers.c.format_version == bindparam("of_version"),
    RegionOffers.c.payload.is_not(None),
)
_FETCH_TIMES = select(RegionOffers.c.region, RegionOffers.c.fetched_at).where(_OF_CLOUD)
_REGIONS = select(
    RegionOffers.c.region,
    RegionOffers.c.fetched_at,
    RegionOffers.c.fetched_by,
    RegionOffers.c.payload,
    (DATABASE_NOW - RegionOffers.c.fetched_at).label("age_s"),
).where(_OF_CLOUD, RegionOffers.c.region.in_(bindparam("regions", expanding=True)))
_DELETE_OLD = delete(RegionOffers).where(RegionOffers.c.claimed_until < DATABASE_NOW - _RETENTION_S)


def fetch_times(conn: Connection, cloud: str) -> dict[str, float]:
    """Region → when it was fetched, for all regions in the database."""
    rows = conn.execute(_FETCH_TIMES, {"of_cloud": cloud, "of_version": FORMAT_VERSION})
    return {row.region: row.fetched_at for row in rows}


def load_regions(conn: Connection, cloud: str, regions: list[str], now: float) -> list[Any]:
    """Rows of `region`, `fetched_at`, `fetched_by`, `payload` and `age_s`. Raises ValueError if one is not JSON."""
    return list(
        conn.execute(_REGIONS, {"of_cloud": cloud, "of_version": FORMAT_VERSION, "regions": regions, **as_of(now)})
    )


def claim(conn: Connection, cloud: str, region: str, *, by: str, now: float, age_s: float, for_s: float) -> bool:
    """Claim the right to fetch the region for `for_s` seconds.

    True if no other daemon has claimed it, and if it was fetched at least `age_s` seconds ago. A claim that `by` holds
    already is extended.
    """
    key = {"cloud": cloud, "region": region, "format_version": FORMAT_VERSION}
    row = {**key, "fetched_at": 0.0, "fetched_by": "", "claimed_by": by}
    values = {**row, "age_s": age_s, "for_s": for_s, **as_of(now)}
    return conn.execute(_claim(conn.dialect.name), values).first() is not None


@cache
def _claim(dialect: str) -> Any:
    new = insert_for(dialect, RegionOffers).values(claimed_until=DATABASE_NOW + bindparam("for_s", type_=Float))
    free = or_(RegionOffers.c.claimed_until < DATABASE_NOW, RegionOffers.c.claimed_by == new.excluded.claimed_by)
    return new.on_conflict_do_update(
        index_elements=["cloud", "region", "format_version"],
        set_={name: new.excluded[name] for name in ("claimed_by", "claimed_until")},
        where=and_(free, RegionOffers.c.fetched_at <= DATABASE_NOW - bindparam("age_s", type_=Float)),
    ).returning(RegionOffers.c.region)


def store(conn: Connection, cloud: str, region: str, payload: Mapping[str, Any], *, by: str, now: float) -> float:
    """Store the offers of a region and end the claim on it. Returns when they were fetched, by the database's clock.

    Deletes regions that were not fetched for a month.
    """
    key = {"cloud": cloud, "region": region, "format_version": FORMAT_VERSION}
    row = {**key, "fetched_by": by, "claimed_by": "", "payload": payload}
    fetched_at: float = conn.execute(_store(conn.dialect.name), {**row, **as_of(now)}).scalar_one()
    conn.execute(_DELETE_OLD, as_of(now))
    return fetched_at


@cache
def _store(dialect: str) -> Any:
    new = insert_for(dialect, RegionOffers).values(fetched_at=DATABASE_NOW, claimed_until=DATABASE_NOW)
    columns = ("fetched_at", "fetched_by", "claimed_by", "claimed_until", "payload")
    return new.on_conflict_do_update(
        index_elements=["cloud", "region", "format_version"], set_={name: new.excluded[name] for name in columns}
    ).returning(RegionOffers.c.fetched_at)
