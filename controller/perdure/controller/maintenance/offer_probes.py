"""Probes: launches of offers that no job has tried lately, to learn whether the offers are available.

```yaml
probes:                          # without this section there are no probes
  interval: 2h                   # of each offer, unless a job tried it meanwhile
  infra: [aws/us-east-1, aws/us-west-2/us-west-2b]
  instance_types: [p3.2xlarge]
  budget_per_day: 1.00           # USD in 24 hours; when it is spent, probes pause
```

A probe is a job of the user `perdure-probes`. One runs at a time, and it is cancelled as soon as its launch has a
result. So the queue shows it with its cost, its result counts like that of any launch, and its machine is terminated
like that of any job, even if this controller dies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import structlog
from sqlalchemy import Engine, select

from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.queries import job_listing
from perdure.controller.store.records.jobs import Job
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.service import Submission, SubmissionService
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import JobView
from perdure.recovery.market.offers import Market
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.statuses import AttemptState
from perdure.sdk.spec.problems import InvalidValue as NotRead
from perdure.sdk.spec.values.deadlines import DURATION, parse_duration, seconds

log = structlog.get_logger(__name__)

USER = "perdure-probes"
TICK_S = 1.0
_DAY_S = 86400.0
CONFIG_KEYS = (
    ConfigKey(
        "probes.interval", "duration", "required", "How often each offer is probed if no job has tried it meanwhile."
    ),
    ConfigKey(
        "probes.infra", "list of text", "required", "Where to probe, such as aws/us-east-1; may contain wildcards."
    ),
    ConfigKey("probes.instance_types", "list of text", "required", "The instance types to probe."),
    ConfigKey("probes.budget_per_day", "number", "required", "The most that probes may cost within 24 hours.", "USD"),
)


@dataclass(frozen=True)
class ProbeConfig:
    """Which spot offers are probed, and how often."""

    interval_s: float  # of each offer
    infra: tuple[str, ...]  # patterns of cloud, cloud/region or cloud/region/zone
    instance_types: tuple[str, ...]
    budget_per_day: float  # USD

    def covers(self, offer: Offer) -> bool:
        zone = f"{offer.cloud}/{offer.region}/{offer.zone}/"
        return (
            offer.market is Market.SPOT
            and offer.instance_type in self.instance_types
            and any(fnmatchcase(zone, f"{infra.rstrip('/')}/*") for infra in self.infra)
        )


def read_probe_config(settings: Settings) -> ProbeConfig | None:
    """The section `probes` of config.yaml; None without one. Raises SettingsError, which names the field."""
    source = ConfigFile.load(settings.home)
    if source.data.get("probes") is None:
        return None
    section = source.section("probes", child_names(CONFIG_KEYS, "probes"))
    budget = section.get("budget_per_day")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
        raise source.error(("probes", "budget_per_day"), f"expected USD (a number above 0), found {budget!r}")
    try:
        interval_s = seconds(parse_duration(section.get("interval")))
    except NotRead as error:
        raise source.error(("probes", "interval"), f"expected {DURATION}, found {section.get('interval')!r}") from error
    names: dict[str, tuple[str, ...]] = {}
    for field in ("infra", "instance_types"):
        value = section.get(field)
        if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
            raise source.error(("probes", field), f"expected a list of names, found {value!r}")
        names[field] = tuple(value)
    return ProbeConfig(interval_s, names["infra"], names["instance_types"], float(budget))


@dataclass(frozen=True)
class Spent:
    """What was spent on probes in the last 24 hours."""

    count: int
    cost: float  # USD


class Prober:
    """Ticked every `TICK_S`. Keeps no state: probes under way and the money spent are read from the database."""

    def __init__(
        self,
        config: ProbeConfig,
        *,
        database: Engine,
        clock: Clock,
        market: MarketState,
        submissions: SubmissionService,
        inbox: ReconcilerInbox,
    ) -> None:
        self.config = config
        self._database = database
        self._clock = clock
        self._market = market
        self._submissions = submissions
        self._inbox = inbox

    def tick(self) -> None:
        """Cancel probes that have a result, or start the next one. Raises nothing: errors are logged."""
        try:
            if not self._cancel_completed():
                self._probe_next()
        except (*UNAVAILABLE, RequestRejected) as error:
            log.warning("probes.failed", error=str(error))

    def spent(self) -> Spent:
        """What was spent in the last 24 hours. Raises what the database raises."""
        now = self._clock.now()
        with self._database.connect() as conn:
            recent = select(Job.c.id).where(Job.c.user == USER, Job.c.submitted_at > now - _DAY_S)
            probes = job_listing.describe(conn, list(conn.execute(recent).scalars()), now)
        return Spent(len(probes), sum(job["cost_usd"] for job in probes))

    def _cancel_completed(self) -> bool:
        """Cancel every probe whose launch has a result. Returns whether any probe is still open."""
        with self._database.connect() as conn:
            open_ids = list(
                conn.execute(select(Job.c.id).where(Job.c.user == USER, Job.c.finalized.is_(False))).scalars()
            )
        for job_id in open_ids:
            view = self._inbox.view(job_id)
            if view is None or view.cancel is not None or (result := _launch_result(view)) is None:
                continue
            note = TimelineEntry("probe.completed", view.tasks[0].index, message=result)
            self._inbox.submit(JobEvent(job_id, events.CancelRequested(0.0), notes=(note,)))
        return bool(open_ids)

    def _probe_next(self) -> None:
        now = self._clock.now()
        offer = next_offer(self.config, self._market.view(), now)
        if offer is None:
            return
        spent = self.spent()
        if spent.cost >= self.config.budget_per_day:
            return
        # Of several controllers on one database, the first one probes the offer in each interval.
        key = f"probe {offer.key} {int(now // self.config.interval_s)}"
        resources = {
            "infra": f"{offer.cloud}/{offer.region}/{offer.zone}",
            "instance_type": offer.instance_type,
            "use_spot": True,
            "job_recovery": {"strategy": "CHEAPEST"},
        }
        # Long enough that the job is cancelled before it succeeds, even if a machine boots at once.
        config = {"resources": resources, "run": "sleep 60"}
        accepted = self._submissions.accept(Submission("probe", [config], USER, key))
        if accepted.claims:
            log.info("probe.sent", job=accepted.job_id, offer=str(offer.key), price_per_hour=offer.price_per_hour)
            self._inbox.adopt(accepted.claims, accepted.views)


def make_prober(
    settings: Settings,
    *,
    database: Engine,
    clock: Clock,
    market: MarketState,
    submissions: SubmissionService,
    inbox: ReconcilerInbox,
) -> Prober | None:
    """The prober, if config.yaml enables probes. Raises SettingsError."""
    config = read_probe_config(settings)
    if config is None:
        return None
    return Prober(config, database=database, clock=clock, market=market, submissions=submissions, inbox=inbox)


def next_offer(config: ProbeConfig, market: MarketView, now: float) -> Offer | None:
    """The offer whose last observation is the oldest, and at least an interval ago. Unavailable offers are skipped."""
    due = [
        (observed_at, str(offer.key), offer)
        for offer in _covered(config, market.offers)
        if (observed_at := _observed_at(market, offer)) <= now - config.interval_s
        and not any(r.until > now and r.covers(offer) for r in market.unavailable)
    ]
    return min(due)[2] if due else None


def _covered(config: ProbeConfig, offers: Iterable[Offer]) -> list[Offer]:
    return [offer for offer in offers if config.covers(offer)]


def _observed_at(market: MarketView, offer: Offer) -> float:
    track = market.history.track(offer.key)
    return track.seen_at if track else float("-inf")


def _launch_result(job: JobView) -> str | None:
    """The result of the probe's launch; None while it is under way."""
    task = job.tasks[0]
    if any(a.state is not AttemptState.REQUESTED for a in task.attempts):
        return "the offer is available"
    return "the launch was refused" if task.consecutive_refusals else None
