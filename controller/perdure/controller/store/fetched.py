"""What clouds told that they sell: a row for each region, and who is asking it now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Float, and_, bindparam, delete, or_, select

from perdure.controller.store.database import DATABASE_NOW, as_of, insert_for
from perdure.controller.store.tables import FetchedRow

Fetched = FetchedRow.__table__  # type: ignore[attr-defined]

FORM = 1
"""Of what is kept: one more for every change that an older version could not read."""
KEPT_S = 30 * 86_400.0

_OF_CLOUD = and_(
    Fetched.c.cloud == bindparam("of_cloud"), Fetched.c.form == bindparam("of_form"), Fetched.c.told.is_not(None)
)
_STAMPS = select(Fetched.c.region, Fetched.c.at).where(_OF_CLOUD)
_PAGES = select(
    Fetched.c.region, Fetched.c.at, Fetched.c.by, Fetched.c.told, (DATABASE_NOW - Fetched.c.at).label("age_s")
).where(_OF_CLOUD, Fetched.c.region.in_(bindparam("regions", expanding=True)))
_FORGET = delete(Fetched).where(Fetched.c.claimed_until < DATABASE_NOW - KEPT_S)


def stamps(conn: Connection, cloud: str) -> dict[str, float]:
    """Region → when it was told, of those that are kept."""
    rows = conn.execute(_STAMPS, {"of_cloud": cloud, "of_form": FORM})
    return {row.region: row.at for row in rows}


def pages(conn: Connection, cloud: str, regions: list[str], now: float) -> list[Any]:
    """Rows of `region`, `at`, `by`, `told` and `age_s`. Raises ValueError for what is no JSON."""
    return list(conn.execute(_PAGES, {"of_cloud": cloud, "of_form": FORM, "regions": regions, **as_of(now)}))


def claim(conn: Connection, cloud: str, region: str, *, by: str, now: float, age_s: float, for_s: float) -> bool:
    """Whether the region is `by`'s to ask for the next `for_s` seconds: nobody else's, and told `age_s` ago or more.
    What somebody of that name has claimed before is claimed anew."""
    row = {"cloud": cloud, "region": region, "form": FORM, "at": 0.0, "by": "", "claimed_by": by}
    values = {**row, "age_s": age_s, "for_s": for_s, **as_of(now)}
    return conn.execute(_claim(conn.dialect.name), values).first() is not None


@cache
def _claim(dialect: str) -> Any:
    new = insert_for(dialect, Fetched).values(claimed_until=DATABASE_NOW + bindparam("for_s", type_=Float))
    free = or_(Fetched.c.claimed_until < DATABASE_NOW, Fetched.c.claimed_by == new.excluded.claimed_by)
    return new.on_conflict_do_update(
        index_elements=["cloud", "region", "form"],
        set_={name: new.excluded[name] for name in ("claimed_by", "claimed_until")},
        where=and_(free, Fetched.c.at <= DATABASE_NOW - bindparam("age_s", type_=Float)),
    ).returning(Fetched.c.region)


def remember(conn: Connection, cloud: str, region: str, told: Mapping[str, Any], *, by: str, now: float) -> float:
    """Keep it, as of now, and end the claim; what was not told for a month is dropped. When that was."""
    row = {"cloud": cloud, "region": region, "form": FORM, "by": by, "claimed_by": "", "told": told}
    at: float = conn.execute(_remember(conn.dialect.name), {**row, **as_of(now)}).scalar_one()
    conn.execute(_FORGET, as_of(now))
    return at


@cache
def _remember(dialect: str) -> Any:
    new = insert_for(dialect, Fetched).values(at=DATABASE_NOW, claimed_until=DATABASE_NOW)
    kept = ("at", "by", "claimed_by", "claimed_until", "told")
    return new.on_conflict_do_update(
        index_elements=["cloud", "region", "form"], set_={name: new.excluded[name] for name in kept}
    ).returning(Fetched.c.at)
