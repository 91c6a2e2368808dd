"""Inserts and loads jobs, and writes what changed. Who may write a job is decided in `job_claims`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Engine, bindparam, exists, insert, or_, select, update

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store import codec
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.engine.rows import as_dicts
from perdure.controller.store.tables import AttemptRow, EventRow, JobRow, NodeRow, TaskRow
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.job import AttemptView, Cancel, JobView, NodeView, TaskView
from perdure.recovery.statuses import AttemptState

Job = JobRow.__table__  # type: ignore[attr-defined]
Task = TaskRow.__table__  # type: ignore[attr-defined]
Attempt = AttemptRow.__table__  # type: ignore[attr-defined]
Node = NodeRow.__table__  # type: ignore[attr-defined]
TimelineEvent = EventRow.__table__  # type: ignore[attr-defined]

IS_PART = or_(Job.c.cluster_id.is_not(None), Job.c.service_id.is_not(None))
"""Whether a job is a part of a cluster or of a service. Users find it there, not among their managed jobs."""
_OtherJob = Job.alias()


def is_managed(job_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether the job of this id is no part. Looked up by its id: otherwise all parts would be read."""
    is_part = or_(_OtherJob.c.cluster_id.is_not(None), _OtherJob.c.service_id.is_not(None))
    return ~exists().where(_OtherJob.c.id == job_id, is_part)


def _by_key(table: Any, *names: str) -> Any:
    """An UPDATE of the row whose key is in the parameters `key_<name>`; the other parameters are the columns to set."""
    return update(table).where(*(table.c[name] == bindparam(f"key_{name}") for name in names))


_LATEST_ENTRIES = 500  # far more than the reports that one connection has under way
_FINALIZE = update(Job).where(Job.c.id == bindparam("key_id")).values(finalized=True)
_CLEAR_SECRETS = (
    update(Task).where(Task.c.job_id == bindparam("key_job_id"), Task.c.secrets.is_not(None)).values(secrets=None)
)
_UPDATE_TASK = _by_key(Task, "job_id", "index")
_UPDATE_ATTEMPT = _by_key(Attempt, "job_id", "task_index", "generation")
_UPDATE_NODE = _by_key(Node, "job_id", "task_index", "generation", "rank")
_INSERT_TASK, _INSERT_ATTEMPT, _INSERT_NODE, _INSERT_EVENT = (
    insert(Task),
    insert(Attempt),
    insert(Node),
    insert(TimelineEvent),
)
_INSERT_JOB = insert(Job).returning(Job.c.id, sort_by_parameter_order=True)
_KNOWN_KEYS = select(Job.c.idempotency_key).where(Job.c.idempotency_key.in_(bindparam("keys", expanding=True)))
_NODE_BY_KEY = tuple(
    Node.c[name] == bindparam(f"key_{name}") for name in ("job_id", "task_index", "generation", "rank")
)
_STOP_NODES = update(Node).where(*_NODE_BY_KEY[:3]).values(connected=False)
_ADVANCE = (
    update(Node).where(*_NODE_BY_KEY, Node.c.checkpoint_seq < bindparam("seq")).values(checkpoint_seq=bindparam("seq"))
)
KEY_SEPARATOR = "\x1f"
"""Separates the parts of idempotency keys that are not a user's own; users cannot send it."""
_BATCH_SIZE = 1000  # jobs in one statement
_OF_JOBS: BindParameter[list[int]] = bindparam("job_ids", expanding=True)
_CHECKPOINT_SEQS = select(
    Node.c.job_id, Node.c.task_index, Node.c.generation, Node.c.rank, Node.c.checkpoint_seq
).where(Node.c.job_id.in_(_OF_JOBS), Node.c.checkpoint_seq > 0)
# Only what a view holds: decoding the JSON of `config` and `spec` would take longer than all of it.
_TASKS = (
    select(*(Task.c[name] for name in ("job_id", *codec.VIEW_COLUMNS)))
    .where(Task.c.job_id.in_(_OF_JOBS))
    .order_by(Task.c.index)
)
_JOBS = select(Job.c.id, Job.c.cancel_at, Job.c.cancel_grace_s).where(Job.c.id.in_(_OF_JOBS))
_NODES = select(Node).where(Node.c.job_id.in_(_OF_JOBS)).order_by(Node.c.rank)
_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.c.job_id.in_(_OF_JOBS), Attempt.c.state != AttemptState.GONE.value)
    .order_by(Attempt.c.generation)
)
_LIVE = select(Attempt.c.job_id, Attempt.c.task_index, Attempt.c.generation).where(
    Attempt.c.state != AttemptState.GONE.value
)
_LIVE_OF_JOBS = _LIVE.where(Attempt.c.job_id.in_(_OF_JOBS))


@dataclass(frozen=True)
class NewTask:
    """A task to insert. `spec` is sent to the nodes, and `secrets` are encrypted."""

    view: TaskView
    name: str
    config: dict[str, Any]
    spec: dict[str, Any]
    secrets: bytes | None


def find_by_key(conn: Connection, key: str) -> list[int]:
    """The ids of the job or batch that was accepted with this idempotency key, by rank; empty if there is none."""
    first = conn.execute(select(Job.c.id, Job.c.batch_size).where(Job.c.idempotency_key == key)).one_or_none()
    if first is None:
        return []
    others = [_key_in_batch(key, number) for number in range(1, first.batch_size)]
    if not others:
        return [first.id]
    query = select(Job.c.id).where(Job.c.idempotency_key.in_(others)).order_by(Job.c.batch_rank)
    return [first.id, *conn.execute(query).scalars()]


def name_of(conn: Connection, job_id: int) -> str:
    return str(conn.execute(select(Job.c.name).where(Job.c.id == job_id)).scalar_one())


def known_keys(conn: Connection, keys: Sequence[str]) -> set[str]:
    """The idempotency keys, of these, with which a job was accepted before."""
    return set(conn.execute(_KNOWN_KEYS, {"keys": list(keys)}).scalars()) if keys else set()


def insert_batch(conn: Connection, columns: Mapping[str, Any], *, batch_size: int = 1) -> list[int]:
    """Insert the rows of a job, or of a batch of `batch_size` jobs, and return their ids by rank. Ids are never reused.

    All jobs get the same `columns`. The first job gets the idempotency key itself; the others get keys derived from it.
    """
    return insert_batches(conn, [(columns, batch_size)])[0]


@dataclass(frozen=True)
class Batch:
    """Jobs that are launched together: the ranks of these, of `size` in all. `sweep_id`: they join that sweep."""

    size: int
    ranks: Sequence[int]
    sweep_id: int | None = None


def insert_batches(conn: Connection, batches: Sequence[tuple[Mapping[str, Any], int | Batch]]) -> list[list[int]]:
    """`insert_batch` for several batches (columns, batch size), which all have the same columns.

    The jobs of a batch of several are a sweep, named after the first of them.
    """
    wanted = [(columns, Batch(of, range(of)) if isinstance(of, int) else of) for columns, of in batches]
    rows = [
        {
            **columns,
            "lease_epoch": 1,
            "batch_rank": rank,
            "batch_size": batch.size,
            "sweep_id": batch.sweep_id,
            "idempotency_key": key and _key_in_batch(key, number),
        }
        for columns, batch in wanted
        for key in [columns.get("idempotency_key")]
        for number, rank in enumerate(batch.ranks)
    ]
    ids = iter(conn.execute(_INSERT_JOB, rows).scalars().all() if rows else ())
    inserted = [list(islice(ids, len(batch.ranks))) for _, batch in wanted]
    for (_, batch), own in zip(wanted, inserted, strict=True):
        if batch.size > 1 and batch.sweep_id is None:
            conn.execute(
                update(Job).where(Job.c.id.between(own[0], own[-1]), Job.c.id.in_(own)).values(sweep_id=own[0])
            )
    return inserted


def _key_in_batch(key: str, rank: int) -> str:
    return f"{key}{KEY_SEPARATOR}{rank}" if rank else key


def add_tasks(writes: WriteBatch, tasks: Sequence[NewTask], task_ids: Mapping[int, Sequence[str]]) -> None:
    """Insert the same tasks for every job of `task_ids` (job id → one id per task)."""
    columns = [
        {
            "index": new.view.index,
            "name": new.name,
            "config": new.config,
            "spec": new.spec,
            "secrets": new.secrets,
            "requirements": [codec.encode_requirement(r) for r in new.view.requirements],
            "recovery": codec.encode_recovery(new.view.recovery),
            "num_nodes": new.view.num_nodes,
            **codec.task_columns(new.view),
        }
        for new in tasks
    ]
    for job_id, ids in task_ids.items():
        for task, task_id in zip(columns, ids, strict=True):
            writes.add(_INSERT_TASK, {"job_id": job_id, "task_id": task_id, **task})


def finalize(writes: WriteBatch, job_id: int) -> None:
    """Mark a job that needs no more work, and delete its secrets: no node asks for them again.

    The same transaction must call `job_claims.update_guarded` for the job.
    """
    writes.add(_FINALIZE, {"key_id": job_id})
    writes.add(_CLEAR_SECRETS, {"key_job_id": job_id})


def clear_secrets_of_ended(conn: Connection, first: int, last: int) -> int:
    """Delete the secrets of the finalized jobs with ids from `first` to `last`. Returns of how many tasks."""
    ended = select(Job.c.id).where(Job.c.id.between(first, last), Job.c.finalized)
    cleared = update(Task).where(Task.c.job_id.in_(ended), Task.c.secrets.is_not(None)).values(secrets=None)
    return conn.execute(cleared).rowcount


def load(conn: Connection, job_ids: Iterable[int]) -> dict[int, JobView]:
    """The jobs as decision values, with the attempts that are not GONE."""
    ids = list(job_ids)
    attempts: dict[tuple[int, int], list[AttemptView]] = {}
    tasks: dict[int, list[TaskView]] = {}
    for (job_id, index, _), attempt in load_attempts(conn, ids).items():
        attempts.setdefault((job_id, index), []).append(attempt)
    for row in as_dicts(conn.execute(_TASKS, {"job_ids": ids})):
        its_attempts = tuple(attempts.get((row["job_id"], row["index"]), ()))
        tasks.setdefault(row["job_id"], []).append(codec.decode_task(row, its_attempts))
    jobs = {}
    for row in as_dicts(conn.execute(_JOBS, {"job_ids": ids})):
        cancel = Cancel(row["cancel_at"], row["cancel_grace_s"]) if row["cancel_at"] is not None else None
        jobs[row["id"]] = JobView(row["id"], tuple(tasks.get(row["id"], ())), cancel)
    return jobs


def load_attempts(conn: Connection, job_ids: Iterable[int]) -> dict[tuple[int, int, int], AttemptView]:
    """The attempts of these jobs that are not GONE, oldest first, by (job, task, generation)."""
    ids = list(job_ids)
    nodes: dict[tuple[int, int, int], list[NodeView]] = {}
    for row in as_dicts(conn.execute(_NODES, {"job_ids": ids})):
        nodes.setdefault((row["job_id"], row["task_index"], row["generation"]), []).append(codec.decode_node(row))
    keys_and_rows = (
        ((row["job_id"], row["task_index"], row["generation"]), row)
        for row in as_dicts(conn.execute(_ATTEMPTS, {"job_ids": ids}))
    )
    return {key: codec.decode_attempt(row, tuple(nodes.get(key, ()))) for key, row in keys_and_rows}


def save(writes: WriteBatch, before: JobView, after: JobView, now: float) -> None:
    """Write what differs between the two. `job_claims.update_guarded` writes the job's own row."""
    old_tasks = {t.index: t for t in before.tasks}
    for task in after.tasks:
        old = old_tasks[task.index]
        if task is old:
            continue
        changed = codec.changed_task_columns(old, task)
        if changed:
            writes.add(_UPDATE_TASK, {**changed, "key_job_id": after.id, "key_index": task.index})
        _save_attempts(writes, after.id, old, task, now)


def _save_attempts(writes: WriteBatch, job_id: int, old: TaskView, new: TaskView, now: float) -> None:
    known = {a.generation: a for a in old.attempts}
    kept = {a.generation for a in new.attempts}
    for attempt in new.attempts:
        if attempt.generation in known:
            _update_attempt(writes, (job_id, new.index), known[attempt.generation], attempt, now)
        else:
            _insert_attempt(writes, (job_id, new.index), attempt)
    created = range(old.next_generation, new.next_generation)
    assert all(g in kept for g in created), "an attempt was requested and dropped in one step"
    for generation, attempt in known.items():
        if generation not in kept:
            key = _key((job_id, new.index), generation)
            stopped = {} if _has_stopped(attempt) else {"stopped_at": now}
            writes.add(_UPDATE_ATTEMPT, {**key, "state": AttemptState.GONE.value, "gone_at": now, **stopped})
            writes.add(_STOP_NODES, key)


def _has_stopped(attempt: AttemptView) -> bool:
    return attempt.state in (AttemptState.STOPPED, AttemptState.GONE)


def _key(task: tuple[int, int], generation: int) -> dict[str, int]:
    """The key parameters of `_UPDATE_ATTEMPT`."""
    return {"key_job_id": task[0], "key_task_index": task[1], "key_generation": generation}


def _insert_attempt(writes: WriteBatch, task: tuple[int, int], attempt: AttemptView) -> None:
    key = {"job_id": task[0], "task_index": task[1], "generation": attempt.generation}
    writes.add(_INSERT_ATTEMPT, {**key, **codec.attempt_columns(attempt)})
    for node in attempt.nodes:
        writes.add(_INSERT_NODE, {**key, "rank": node.rank, **codec.node_columns(node)})


def _update_attempt(writes: WriteBatch, task: tuple[int, int], old: AttemptView, new: AttemptView, now: float) -> None:
    if old is new:
        return
    key = _key(task, new.generation)
    changed = codec.changed_attempt_columns(old, new)
    if _has_stopped(new) and not _has_stopped(old):
        changed["stopped_at"] = now
    if changed:
        writes.add(_UPDATE_ATTEMPT, {**changed, **key})
    for node, before in zip(new.nodes, old.nodes, strict=True):
        changed = codec.changed_node_columns(before, node)
        if changed:
            writes.add(_UPDATE_NODE, {**changed, **key, "key_rank": node.rank})


def append_timeline(writes: WriteBatch, job_id: int, notes: Sequence[TimelineEntry], now: float) -> None:
    """Append entries to the job's timeline."""
    for n in notes:
        row = {
            "job_id": job_id,
            "task_index": n.task,
            "generation": n.generation,
            "rank": n.rank,
            "at": now,
            "kind": n.kind,
            "reason": n.reason.value if n.reason else None,
            "message": n.message,
            "data": n.data,
        }
        writes.add(_INSERT_EVENT, row)


def has_checkpoint_entry(conn: Connection, job_id: int, note: TimelineEntry) -> bool:
    """Whether the job's timeline has an entry for the same checkpoint message, among the node's latest ones.

    A message is identified by its number, whatever else it contains: a node could repeat a number with other content.
    """
    of = {"job_id": job_id, "task_index": note.task, "generation": note.generation, "rank": note.rank}
    same = [TimelineEvent.c[name] == value for name, value in of.items()]
    rows = select(TimelineEvent.c.data).where(*same, TimelineEvent.c.kind.like("checkpoint.%"))
    latest = conn.execute(rows.order_by(TimelineEvent.c.id.desc()).limit(_LATEST_ENTRIES)).scalars()
    numbers, number = [int(data.get("seq", 0)) for data in latest], int(str(note.data["seq"]))
    return number in numbers or (len(numbers) == _LATEST_ENTRIES and number < min(numbers))


def record_lifetimes(
    writes: WriteBatch, key: tuple[int, int, int], lifetimes: Mapping[int, tuple[float | None, float | None]]
) -> None:
    """Record when the billing of machines began and ended, according to the cloud (rank → launched, ended)."""
    for rank, (launched_at, ended_at) in lifetimes.items():
        values = {"launched_at": launched_at, "ended_at": ended_at}
        known = {name: value for name, value in values.items() if value is not None}
        if known:
            writes.add(_UPDATE_NODE, {**known, **_key(key[:2], key[2]), "key_rank": rank})


def advance_checkpoint_seq(conn: Connection, key: tuple[int, int, int], rank: int, seq: int) -> bool:
    """Record that the node's checkpoint message `seq` was received. False if it was received before."""
    of = {**_key(key[:2], key[2]), "key_rank": rank}
    return conn.execute(_ADVANCE, {**of, "seq": seq}).rowcount == 1


def checkpoint_seqs(conn: Connection, job_ids: Sequence[int]) -> dict[tuple[tuple[int, int, int], int], int]:
    """The sequence number of the last checkpoint message of each node that has sent one, by attempt and rank."""
    rows = conn.execute(_CHECKPOINT_SEQS, {"job_ids": list(job_ids)})
    return {((r.job_id, r.task_index, r.generation), r.rank): r.checkpoint_seq for r in rows}


def task_ids(conn: Connection, job_id: int) -> tuple[str, ...]:
    """SKYPILOT_TASK_ID of each task of a job, in order."""
    return tuple(conn.execute(select(Task.c.task_id).where(Task.c.job_id == job_id).order_by(Task.c.index)).scalars())


def live_attempts(conn: Connection) -> list[tuple[int, int, int]]:
    """(job, task, generation) of every attempt that is not GONE."""
    return [(row.job_id, row.task_index, row.generation) for row in conn.execute(_LIVE)]


def filter_live(conn: Connection, keys: Collection[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """The attempts, of these, that are not GONE."""
    ids = sorted({key[0] for key in keys})
    live: set[tuple[int, int, int]] = set()
    for start in range(0, len(ids), _BATCH_SIZE):
        rows = conn.execute(_LIVE_OF_JOBS, {"job_ids": ids[start : start + _BATCH_SIZE]})
        live.update((row.job_id, row.task_index, row.generation) for row in rows)
    return live & set(keys)


def live_reader(database: Engine) -> Callable[[Collection[AttemptKey]], Collection[AttemptKey]]:
    """`filter_live` with a connection of its own."""

    def read(keys: Collection[AttemptKey]) -> Collection[AttemptKey]:
        with database.connect() as conn:
            return filter_live(conn, keys)

    return read
