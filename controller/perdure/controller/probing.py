"""Sparse probes: offers that no job has told of lately are bought for a moment, to learn whether they can be had.

```yaml
probes:                          # without this section there are none
  every: 2h                      # each offer that often, if nothing else was seen of it
  infra: [aws/us-east-1, aws/us-west-2/us-west-2b]
  instance_types: [p3.2xlarge]
  budget_per_day: 1.00           # USD; when it is spent, there are no more until some of it is a day old
```

A probe is a job of the user `perdure-probes`, one at a time, ended as soon as its launch was answered. So the queue
shows it with its price, what it learns goes where every launch's outcome goes, and its machine is ended as any job's
is, whatever becomes of this controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import structlog
from sqlalchemy import Engine, select

from perdure.controller.clock import Clock
from perdure.controller.market import Market
from perdure.controller.reconcile import Reconciler
from perdure.controller.refusing import Refused
from perdure.controller.settings import ConfigFile, Settings
from perdure.controller.store import queries
from perdure.controller.store.database import UNAVAILABLE
from perdure.controller.store.jobs import Job
from perdure.controller.submission import Submission, Submissions
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.job import JobView
from perdure.recovery.market import MarketView, Offer
from perdure.recovery.offers import Market as OfMarket
from perdure.recovery.statuses import AttemptState
from perdure.sdk.deadlines import DURATION, read_duration, seconds
from perdure.sdk.problems import Refused as NotRead

log = structlog.get_logger(__name__)

USER = "perdure-probes"
TICK_S = 1.0
_DAY_S = 86400.0
_KNOWN = ("every", "infra", "instance_types", "budget_per_day")


@dataclass(frozen=True)
class Probing:
    """What is to be probed: spot offers under one of `infra` (cloud, cloud/region, cloud/region/zone) of one of
    `instance_types`, each every `every_s`, for at most `budget_per_day` USD."""

    every_s: float
    infra: tuple[str, ...]
    instance_types: tuple[str, ...]
    budget_per_day: float

    def covers(self, offer: Offer) -> bool:
        place = f"{offer.cloud}/{offer.region}/{offer.zone}/"
        return (
            offer.market is OfMarket.SPOT
            and offer.instance_type in self.instance_types
            and any(fnmatchcase(place, f"{infra.rstrip('/')}/*") for infra in self.infra)
        )


def read_probing(settings: Settings) -> Probing | None:
    """The section `probes` of config.yaml; None without one. Raises SettingsError, which names the field."""
    source = ConfigFile.of(settings.home)
    if source.data.get("probes") is None:
        return None
    section = source.section("probes", _KNOWN)
    budget = section.get("budget_per_day")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise source.error(("probes", "budget_per_day"), f"expected USD (a number above 0), found {budget!r}")
    try:
        every_s = seconds(read_duration(section.get("every")))
    except NotRead as error:
        raise source.error(("probes", "every"), f"expected {DURATION}, found {section.get('every')!r}") from error
    names: dict[str, tuple[str, ...]] = {}
    for field in ("infra", "instance_types"):
        value = section.get(field)
        if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
            raise source.error(("probes", field), f"expected a list of names, found {value!r}")
        names[field] = tuple(value)
    return Probing(every_s, names["infra"], names["instance_types"], float(budget))


@dataclass(frozen=True)
class Spent:
    """Of the last day: how many probes, and USD."""

    count: int
    cost: float


class Prober:
    """Ticked every second. Holds no state: what is under way, and what was spent, is read from the database."""

    def __init__(
        self,
        probing: Probing,
        *,
        database: Engine,
        clock: Clock,
        market: Market,
        submissions: Submissions,
        reconciler: Reconciler,
    ) -> None:
        self.probing = probing
        self._database = database
        self._clock = clock
        self._market = market
        self._submissions = submissions
        self._reconciler = reconciler

    def tick(self) -> None:
        """Raises nothing: what goes wrong is logged, and tried again."""
        try:
            if not self._end_answered():
                self._probe_next()
        except (*UNAVAILABLE, Refused) as error:
            log.warning("probes.failed", error=str(error))

    def spent(self) -> Spent:
        """Raises what the database raises."""
        now = self._clock.now()
        with self._database.connect() as conn:
            recent = select(Job.c.id).where(Job.c.user == USER, Job.c.submitted_at > now - _DAY_S)
            told = queries.describe(conn, list(conn.execute(recent).scalars()), now)
        return Spent(len(told), sum(job["cost_usd"] for job in told))

    def _end_answered(self) -> bool:
        """End every probe whose launch was answered. Whether any is left."""
        with self._database.connect() as conn:
            open_ids = list(
                conn.execute(select(Job.c.id).where(Job.c.user == USER, Job.c.settled.is_(False))).scalars()
            )
        for job_id in open_ids:
            view = self._reconciler.view(job_id)
            if view is None or view.cancel is not None or (answer := _answer(view)) is None:
                continue
            note = Note("probe.answered", view.tasks[0].index, message=answer)
            self._reconciler.post(Turn(job_id, events.CancelRequested(0.0), notes=(note,)))
        return bool(open_ids)

    def _probe_next(self) -> None:
        now = self._clock.now()
        offer = next_offer(self.probing, self._market.view(), now)
        if offer is None:
            return
        spent = self.spent()
        if spent.cost >= self.probing.budget_per_day:
            return
        # Where several controllers share a database, the first to probe an offer in a period does.
        key = f"probe {offer.key} {int(now // self.probing.every_s)}"
        resources = {
            "infra": f"{offer.cloud}/{offer.region}/{offer.zone}",
            "instance_type": offer.instance_type,
            "use_spot": True,
            "job_recovery": {"strategy": "CHEAPEST"},
        }
        # It is ended once it was answered, which has to come first wherever a machine boots at once.
        config = {"resources": resources, "run": "sleep 60"}
        accepted = self._submissions.accept(Submission("probe", [config], USER, key))
        if accepted.claims:
            log.info("probe.sent", job=accepted.job_id, offer=str(offer.key), price_per_hour=offer.price_per_hour)
            self._reconciler.adopt(accepted.claims, accepted.views)


def prober_of(settings: Settings, **parts: Any) -> Prober | None:
    """A `Prober` made of `parts`, where the settings ask for one. Raises SettingsError."""
    probing = read_probing(settings)
    return Prober(probing, **parts) if probing is not None else None


def next_offer(probing: Probing, market: MarketView, now: float) -> Offer | None:
    """The offer to probe: the one unseen for longest, if for as long as a period; none that is being avoided."""
    due = [
        (seen_at, str(offer.key), offer)
        for offer in _covered(probing, market.offers)
        if (seen_at := _seen_at(market, offer)) <= now - probing.every_s
        and not any(r.until > now and r.covers(offer) for r in market.refusals)
    ]
    return min(due)[2] if due else None


def _covered(probing: Probing, offers: Iterable[Offer]) -> list[Offer]:
    return [offer for offer in offers if probing.covers(offer)]


def _seen_at(market: MarketView, offer: Offer) -> float:
    track = market.history.track(offer.key)
    return track.seen_at if track else float("-inf")


def _answer(job: JobView) -> str | None:
    """What became of the launch; None while it is under way."""
    task = job.tasks[0]
    if any(a.state is not AttemptState.REQUESTED for a in task.attempts):
        return "it can be had"
    return "it was refused" if task.refused_in_a_row else None
