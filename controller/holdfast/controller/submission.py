"""How a job is accepted: checked, compiled into what the decision functions and the nodes need, and made durable.

Nothing is written before everything was checked. A refusal is a `Refused`: what is wrong, where, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from holdfast.controller.clock import Clock
from holdfast.controller.concealing import conceal
from holdfast.controller.crashpoints import reach
from holdfast.controller.forecasting import BUDGET_S, forecast
from holdfast.controller.keyring import Keyring
from holdfast.controller.market import Market
from holdfast.controller.storage.service import StorageService
from holdfast.controller.storage.stores import StorageError
from holdfast.controller.store import codec, jobs
from holdfast.controller.store.jobs import Claim, NewTask
from holdfast.controller.store.standing import unfinished
from holdfast.controller.store.writes import Writes
from holdfast.recovery.actions import Note
from holdfast.recovery.job import TaskView
from holdfast.recovery.market import FaultKind, MarketView, Offer, Refusal
from holdfast.recovery.matching import fitting
from holdfast.recovery.policies.choice import Never, Place
from holdfast.recovery.policies.registry import policy
from holdfast.recovery.policies.usual import usual_strategy
from holdfast.sdk import Task
from holdfast.sdk.needs import gpus_per_node, names_strategy, needs, recovery
from holdfast.sdk.problems import TaskError, shown
from holdfast.sdk.variables import FIELDS_WITH_REFERENCES as WITH_REFERENCES

_MOST_OFFERS_SHOWN = 20
_NO_WORK = (
    "nobody said how much work it is, so it runs on-demand until its checkpoints tell "
    "(Checkpointer(..., total_steps=N)); `work: 48h` under job_recovery lets it use spot from the start"
)
# Of a mount: not the bucket's name, by which it is made and found.
_CONCEALED = ("path", "prefix")
_SHA256 = re.compile("[0-9a-f]{64}")

# Fields of a launch request → the fields of a task's resources that they come from.
_FIELD_OF = {
    "disk_gib": "disk_size",
    "disk_tier": "disk_tier",
    "network_tier": "network_tier",
    "image_id": "image_id",
    "labels": "labels",
}


class Refused(Exception):
    """A request that can not be taken. `where` names the field; `fix` says what to do."""

    retry_after_s: int | None = None

    def __init__(self, message: str, *, where: str | None = None, fix: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.where, self.fix, self.status = message, where, fix, status


class FallenBehind(Refused):
    """The controller has more to do than it can, and takes nothing new before it has caught up."""

    retry_after_s = 5


@dataclass(frozen=True)
class Accepted:
    """`job_ids`: one, or a batch's in the order of its ranks. `task_ids`: the first's. `claims`: of the jobs that are
    to be taken up now; one that was accepted before may be another's, or settled."""

    job_ids: tuple[int, ...]
    name: str
    task_ids: tuple[str, ...]
    warnings: tuple[str, ...]
    claims: tuple[Claim, ...]

    @property
    def job_id(self) -> int:
        """The first one's."""
        return self.job_ids[0]


@dataclass(frozen=True)
class Submissions:
    """Accepts jobs on behalf of the controller whose lease is `owner`. `has_upload`: `Files.renew`.

    `most_jobs_per_user`: that have not ended.
    """

    database: Engine
    clock: Clock
    keyring: Keyring
    market: Market
    storage: StorageService
    owner: str
    has_upload: Callable[[str, float], bool]
    most_jobs_per_user: int | None = None

    def accept(
        self, *, name: str | None, configs: Sequence[Mapping[str, Any]], user: str, key: str | None, num_jobs: int = 1
    ) -> Accepted:
        """Make the job durable, or `num_jobs` alike, all or none. Raises Refused, and then nothing has changed."""
        now = self.clock.now()
        tasks = read_tasks(configs)
        job_name = _job_name(name, [task.name for task in tasks])
        compiled = self.compile(tasks, job_name, now)
        self._check_uploads(compiled)
        warnings = self._warnings(tasks) + self._lateness(compiled, now)
        columns = {
            "name": job_name,
            "user": user,
            "priority": max(task.priority or 0 for task in tasks),
            "num_tasks": len(compiled),
            "submitted_at": now,
            "key": key,
            "owner": self.owner,
        }
        try:
            with self.database.begin() as conn:
                if key is not None and (known := jobs.find_by_key(conn, key)):
                    # Its first acceptance may have been cut off before the job was taken up: then it is now.
                    claims = tuple(claim for id in known if (claim := jobs.held(conn, id, self.owner)))
                    return Accepted(tuple(known), job_name, jobs.task_ids(conn, known[0]), warnings, claims)
                job_ids = jobs.reserve(conn, columns, batch_size=num_jobs)
                self._check_room(conn, user, num_jobs)
                count = len(compiled)
                task_ids = {
                    id: [_task_id(now, job_name, task.name, id, i, count) for i, task in enumerate(compiled)]
                    for id in job_ids
                }
                jobs.add_tasks(conn, compiled, task_ids)
                note = Note("job.submitted", data={"tasks": count, "user": user})
                writes = Writes(conn)
                for id in job_ids:
                    jobs.record_notes(writes, id, [note], now)
                writes.flush()
                reach("job.accepting")
        except IntegrityError:
            # Another controller has just accepted the same submission.
            with self.database.connect() as conn:
                if key is None or not (known := jobs.find_by_key(conn, key)):
                    raise
                return Accepted(tuple(known), job_name, jobs.task_ids(conn, known[0]), warnings, ())
        reach("job.accepted")
        claims = tuple(Claim(id, self.owner, 1) for id in job_ids)
        return Accepted(tuple(job_ids), job_name, tuple(task_ids[job_ids[0]]), warnings, claims)

    def _check_room(self, conn: Connection, user: str, num_jobs: int) -> None:
        """Raises Refused where the user would have too many. To be called once their rows are there, without tasks."""
        most = self.most_jobs_per_user
        if most is None or (has := unfinished(conn, user)) + num_jobs <= most:
            return
        more = f"{num_jobs} more" if num_jobs > 1 else "one more"
        raise Refused(
            f"{user or 'this user'} has {has} jobs that have not ended; with {more} there would be over {most}",
            where="user",
            fix="wait until some have ended, cancel some, or raise limits.most_jobs_per_user in config.yaml",
            status=429,
        )

    def compile(self, tasks: Sequence[Task], job_name: str, now: float) -> list[NewTask]:
        """Every task compiled; those without a name are named after the job. Raises Refused."""
        names = [t.name or (job_name if len(tasks) == 1 else f"{job_name}-{i}") for i, t in enumerate(tasks)]
        return [self._compile(task, name, i, now) for i, (task, name) in enumerate(zip(tasks, names, strict=True))]

    def plan(self, name: str | None, configs: Sequence[Mapping[str, Any]], *, foresees: bool = False) -> dict[str, Any]:
        """What would be tried, per task, in order. Raises Refused when nothing could ever run a task.

        `foresees`: with cost and time, as if each task began now.
        """
        now = self.clock.now()
        tasks = read_tasks(configs)
        compiled = self.compile(tasks, _job_name(name, [t.name for t in tasks]), now)
        view = self.market.view()
        return {
            "tasks": [
                self._plan(task, view, now)
                | {"forecast": forecast(task.view, view, now, budget_s=BUDGET_S / len(compiled)) if foresees else None}
                for task in compiled
            ],
            "warnings": [*self._warnings(tasks), *self._lateness(compiled, now)],
        }

    def _warnings(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        """What is accepted and has no effect: said by the tasks themselves, or true of every cloud that is usable."""
        usable = [cloud for cloud in self.market.clouds.values() if cloud.unusable() is None]
        ignored = frozenset.intersection(*(cloud.ignores for cloud in usable)) if usable else frozenset()
        names = " and ".join(cloud.name for cloud in usable)
        found = [warning for task in tasks for warning in task.warnings]
        for task in tasks:
            config = task.to_yaml_config().get("resources") or {}
            asked = sorted(_FIELD_OF[name] for name in _machine(config) if name in ignored)
            found += [f"resources.{name}: accepted, but has no effect on {names}" for name in asked]
        return tuple(dict.fromkeys(found))

    def _lateness(self, tasks: Sequence[NewTask], now: float) -> tuple[str, ...]:
        """A line for each task that even machines that stay would not end in time. Raises Refused for a time past."""
        found, ends_at = [], now
        for task in tasks:
            asked = task.view.recovery
            if asked.deadline_at is not None and asked.deadline_at <= now:
                fix = "give a later one, or a duration such as 60h, which counts from the launch"
                raise Refused("the deadline has passed", where="resources.job_recovery.deadline", fix=fix)
            if asked.deadline_at is not None and asked.work_s is None:
                found.append(f"task {task.name}: {_NO_WORK}")
            ends_at += (asked.work_s or 0.0) + self.market.view().history.start_ups.usual_s
            if asked.deadline_at is not None and ends_at > asked.deadline_at:
                late_min = (ends_at - asked.deadline_at) / 60
                found.append(
                    f"task {task.name}: even on-demand will end it about {late_min:.0f} min after its deadline"
                )
        return tuple(found)

    def _compile(self, task: Task, name: str, index: int, now: float) -> NewTask:
        config = task.to_yaml_config()
        secrets = {k: str(v) for k, v in (config.pop("secrets", None) or {}).items()}
        resources = task.resources
        try:
            storage = self.storage.plan(config.get("file_mounts") or {})
        except StorageError as error:
            raise Refused(error.message, where=error.where, fix=error.fix) from error
        view = TaskView(
            index=index,
            needs=needs(resources),
            num_nodes=task.num_nodes,
            recovery=recovery(resources, launched_at=now),
            storage_ready=not storage.wishes,
            wake_at=now if index == 0 else None,
        )
        why = "you chose it"
        if not names_strategy(resources):
            strategy, why = usual_strategy(view, self.market.view(), now)
            view = replace(view, recovery=replace(view.recovery, strategy=strategy))
        spec = {
            "setup": config.get("setup"),
            "run": config.get("run"),
            "envs": {k: str(v) for k, v in (config.get("envs") or {}).items()},
            "secret_names": sorted(secrets),
            "workdir": _concealed_workdir(config.get("workdir"), secrets),
            "uploads": [upload | {"path": conceal(upload["path"], secrets)} for upload in storage.uploads],
            "mounts": [mount | conceal({k: mount[k] for k in _CONCEALED}, secrets) for mount in storage.mounts],
            "buckets": [wish.to_json() for wish in storage.wishes],
            "gpus_per_node": gpus_per_node(resources),
            "resources": _requested(view),
            "machine": _machine(config.get("resources") or {}),
            "why_strategy": why,
        }
        for digest in _digests(spec):
            if not _SHA256.fullmatch(digest):
                raise Refused(f"{shown(digest)} names no upload", where=name, fix="give the sha256 of what was sent")
        sealed = self.keyring.seal(secrets) if secrets else None
        concealed = config | {field: conceal(config[field], secrets) for field in WITH_REFERENCES if field in config}
        return NewTask(view, name, concealed, spec, sealed)

    def _check_uploads(self, tasks: Sequence[NewTask]) -> None:
        """Raises Refused for a file that was never handed over: its node could only wait for it in vain."""
        for digest in {digest for task in tasks for digest in _digests(task.spec)}:
            if not self.has_upload(digest, self.clock.now()):
                raise Refused(f"there is no upload {digest[:12]}…", where="tasks", fix="send it before the job")

    def _plan(self, task: NewTask, view: MarketView, now: float) -> dict[str, Any]:
        offers = _in_order(task.view, view, now)
        saving = None
        if offers and offers[0].on_demand_price_per_hour > 0:
            saving = 1 - offers[0].price_per_hour / offers[0].on_demand_price_per_hour
        fits = [offer for _, offer in fitting(task.view.needs, view.offers)]
        return {
            "name": task.name,
            "num_nodes": task.view.num_nodes,
            "offers": [_offer_json(offer) for offer in offers],
            "total_offers": len(fits),
            "saving": saving,
            "refused": _refused_now(fits, view, now),
            "strategy": task.view.recovery.strategy,
            "why_strategy": task.spec["why_strategy"],
        }


def _concealed_workdir(workdir: Any, secrets: Mapping[str, str]) -> Any:
    """A git repository's address may hold a token; an upload is only a digest."""
    if not isinstance(workdir, Mapping) or "upload" in workdir:
        return workdir
    return {name: conceal(value, secrets) for name, value in workdir.items()}


def _digests(spec: Mapping[str, Any]) -> list[str]:
    """The uploads that a task's spec names: its workdir, its files, and what goes into its buckets."""
    files = [spec["workdir"], *spec["uploads"]]
    found = [str(one["upload"]) for one in files if isinstance(one, Mapping) and "upload" in one]
    return found + [digest for bucket in spec["buckets"] for digest in bucket["uploads"]]


def read_tasks(configs: Sequence[Mapping[str, Any]]) -> list[Task]:
    """The tasks of a submission, checked. Raises Refused with all that is wrong."""
    if not configs:
        raise Refused("the job has no task", where="tasks", fix="give at least one")
    try:
        return [Task.from_yaml_config(dict(config)) for config in configs]
    except TaskError as error:
        where = error.problems[0].field
        raise Refused(str(error), where=where, fix="correct the task and launch it again") from error


def _in_order(task: TaskView, view: MarketView, now: float) -> list[Offer]:
    """The offers that the task's policy would try, if each in turn said no. Raises Refused when none ever fits."""
    choose = policy(task.recovery.strategy).choose
    refusals = list(view.refusals)
    found: list[Offer] = []
    while len(found) < _MOST_OFFERS_SHOWN:
        match choose(task, replace(view, refusals=tuple(refusals)), now):
            case Place(offer):
                found.append(offer)
                key = offer.key
                refusals.append(
                    Refusal(
                        cloud=key.cloud,
                        region=key.region,
                        zone=key.zone,
                        instance_type=key.instance_type,
                        market=key.market,
                        kind=FaultKind.AVOID_ZONE,
                        at=now,
                        until=float("inf"),
                    )
                )
            case Never(why) if not found:
                raise Refused(
                    "no offer fits: " + "; ".join(why),
                    where="resources",
                    fix="see `holdfast check` for what is enabled",
                )
            case _:
                break
    return found


def _refused_now(fits: Sequence[Offer], view: MarketView, now: float) -> list[str]:
    """A line for each offer that fits and is avoided now, with what was said last."""
    lines = []
    for offer in fits:
        standing = [r for r in view.refusals if r.until > now and r.covers(offer)]
        if standing:
            newest = max(standing, key=lambda r: r.at)
            lines.append(f"{offer.key}: {newest.message or newest.code}")
    return lines[:_MOST_OFFERS_SHOWN]


def _offer_json(offer: Offer) -> dict[str, Any]:
    data = codec.offer_json(offer)
    if offer.accelerators:
        data["accelerators"] = f"{offer.accelerators[0]}:{offer.accelerators[1]:g}"
    return data


def _job_name(name: str | None, task_names: Sequence[str | None]) -> str:
    chosen = name or (task_names[0] if len(task_names) == 1 else None) or "job"
    return re.sub(r"[^A-Za-z0-9_.-]", "-", chosen)


def _task_id(now: float, job: str, task: str, job_id: int, index: int, count: int) -> str:
    """SKYPILOT_TASK_ID: made once, here, and the same in every attempt."""
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d-%H-%M-%S-%f")
    middle = f"{job}_{task}" if count > 1 else job
    return f"sky-managed-{at}_{middle}_{job_id}-{index}"


def _requested(task: TaskView) -> str:
    """The request in a few characters, for the queue."""
    first = task.needs[0]
    parts = []
    if first.instance_type:
        parts.append(first.instance_type)
    if first.accelerators:
        parts.append(f"{first.accelerators[0]}:{first.accelerators[1]:g}")
    if first.cpus:
        parts.append(f"cpus={first.cpus}")
    if first.memory_gib:
        parts.append(f"mem={first.memory_gib}")
    text = f"{task.num_nodes}x[{', '.join(parts) or 'any'}]" + ("[Spot]" if first.use_spot else "")
    return text + (f" or {len(task.needs) - 1} more" if len(task.needs) > 1 else "")


def _machine(resources: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch asks of its machines besides the offer."""
    return {name: resources[field] for name, field in _FIELD_OF.items() if resources.get(field) is not None}
