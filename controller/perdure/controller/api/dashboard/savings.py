"""The route for money: what was spent, what was saved, and what preemptions cost; by user, cloud, job and day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from perdure.controller.api.auth import Reader
from perdure.controller.api.dashboard import responses
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.queries.expenses import Amounts, Spending, SpendingLedgers, SpendingReport, add_up
from perdure.controller.store.queries.job_listing import iso

router = APIRouter(prefix="/api/v1", tags=["savings"], responses=error_responses(400, 401, 503))

_DAY_S = 86_400.0


@router.get("/savings", responses=json_response(responses.Savings))
def savings(caller: Reader, request: Request, days: Annotated[int, Query(ge=1, le=365)] = 7) -> dict[str, Any]:
    """What the jobs cost that ended in the last `days`, and what unfinished ones have cost so far (up to 30 s old).

    `is_complete` is false while the controller has not added up all of that time, and `is_current` if jobs have changed
    since the unfinished ones were added up: call again. `lost_s` is the work of a
    machine that had to be done again, of tasks that report checkpoints; `lost_usd` what it had cost.
    """
    ledgers: SpendingLedgers = request.app.state.spending
    context, ledger = caller.context, ledgers.of(caller.sees)
    now, revision = context.clock.now(), context.job_updates.revision
    with context.database.connect() as conn:
        report = ledger.report(conn, now - days * _DAY_S, now, revision)
    total = add_up([*report.hours.values(), report.recent, report.unfinished])
    return {
        "now": iso(now),
        "since": iso(report.since),
        "is_complete": report.is_complete,
        "is_current": report.is_current,
        "total": _amounts(total.total),
        "unfinished": _amounts(report.unfinished.total),
        "by_user": _rows(total.by_user),
        "by_cloud": _rows(total.by_cloud),
        "by_job": [{"job_id": id, **row} for id, row in _top_jobs(total)],
        "by_day": _days(report, now),
    }


def _amounts(amounts: Amounts) -> dict[str, float]:
    return {
        "cost_usd": amounts.cost_usd,
        "on_demand_usd": amounts.on_demand_usd,
        "lost_s": amounts.lost_s,
        "lost_usd": amounts.lost_usd,
    }


def _rows(by_name: Mapping[str, Amounts]) -> list[dict[str, Any]]:
    rows = [{"name": name, **_amounts(amounts)} for name, amounts in by_name.items()]
    return sorted(rows, key=lambda row: -float(row["cost_usd"]))


def _top_jobs(total: Spending) -> Iterable[tuple[int, dict[str, Any]]]:
    for id in sorted(total.jobs, key=lambda id: -total.jobs[id].cost_usd):
        yield id, {"name": total.names.get(id, ""), **_amounts(total.jobs[id])}


def _days(report: SpendingReport, now: float) -> list[dict[str, Any]]:
    """By the day (UTC) in which the tasks ended, oldest first. Unfinished ones are not in it."""
    days: dict[float, Amounts] = defaultdict(Amounts)
    for end, spent in report.hours.items():
        days[(end - 1.0) // _DAY_S * _DAY_S].add(spent.total)
    days[now // _DAY_S * _DAY_S].add(report.recent.total)
    return [{"day": (iso(day) or "")[:10], **_amounts(days[day])} for day in sorted(days)]
