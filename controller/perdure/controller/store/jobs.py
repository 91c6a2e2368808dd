"""Jobs in the database: accepted, claimed, loaded as decision values, and written back under the guard of the lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, insert, or_, select, update

from perdure.controller.store import codec
from perdure.controller.store.database import DATABASE_NOW, as_of
from perdure.controller.store.tables import AttemptRow, ControllerRow, EventRow, JobRow, NodeRow, TaskRow
from perdure.controller.store.writes import Writes
from perdure.recovery.actions import Note
from perdure.recovery.job import AttemptView, Cancel, JobView, NodeView, TaskView
from perdure.recovery.statuses import AttemptState

Job = JobRow.__table__  # type: ignore[attr-defined]
Task = TaskRow.__table__  # type: ignore[attr-defined]
Attempt = AttemptRow.__table__  # type: ignore[attr-defined]
Node = NodeRow.__table__  # type: ignore[attr-defined]
EventT = EventRow.__table__  # type: ignore[attr-defined]
Controller = ControllerRow.__table__  # type: ignore[attr-defined]


def _by_key(table: Any, *names: str) -> Any:
    """An UPDATE of the row with the key `key_<name>` …, built once: its columns are those that it is executed with."""
    return update(table).where(*(table.c[name] == bindparam(f"key_{name}") for name in names))


_UPDATE_JOB = _by_key(Job, "id", "owner", "epoch")
_SETTLE = update(Job).where(Job.c.id == bindparam("key_id")).values(settled=True)
_UPDATE_TASK = _by_key(Task, "job_id", "index")
_UPDATE_ATTEMPT = _by_key(Attempt, "job_id", "task_index", "generation")
_UPDATE_NODE = _by_key(Node, "job_id", "task_index", "generation", "rank")
_INSERT_TASK, _INSERT_ATTEMPT, _INSERT_NODE, _INSERT_EVENT = insert(Task), insert(Attempt), insert(Node), insert(EventT)
_INSERT_JOB = insert(Job).returning(Job.c.id, sort_by_parameter_order=True)
_KNOWN_KEYS = select(Job.c.key).where(Job.c.key.in_(bindparam("keys", expanding=True)))
_NODE_BY_KEY = tuple(
    Node.c[name] == bindparam(f"key_{name}") for name in ("job_id", "task_index", "generation", "rank")
)
_STOP_NODES = update(Node).where(*_NODE_BY_KEY[:3]).values(connected=False)
_ADVANCE = (
    update(Node).where(*_NODE_BY_KEY, Node.c.checkpoint_seq < bindparam("seq")).values(checkpoint_seq=bindparam("seq"))
)
_AT_ONCE = 1000  # one statement can not name any number of jobs
_OF_JOBS: BindParameter[list[int]] = bindparam("job_ids", expanding=True)
_CHECKPOINT_SEQS = select(
    Node.c.job_id, Node.c.task_index, Node.c.generation, Node.c.rank, Node.c.checkpoint_seq
).where(Node.c.job_id.in_(_OF_JOBS), Node.c.checkpoint_seq > 0)
_TASKS = select(Task).where(Task.c.job_id.in_(_OF_JOBS)).order_by(Task.c.index)
_JOBS = select(Job).where(Job.c.id.in_(_OF_JOBS))
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
_OWN = select(Job.c.id, Job.c.epoch).where(Job.c.owner == bindparam("owner"), Job.c.settled.is_(False))
_STANDING = select(Job.c.id, Job.c.owner, Job.c.epoch).where(Job.c.id.in_(_OF_JOBS), Job.c.settled.is_(False))
_UNSETTLED = select(Job.c.id).where(Job.c.settled.is_(False)).order_by(Job.c.id).limit(bindparam("most"))
_OTHERS = or_(Job.c.owner.is_(None), Job.c.owner != bindparam("claimer"))
_UNCLAIMED = or_(
    Job.c.owner.is_(None),
    Job.c.owner.in_(bindparam("dead", expanding=True)),
    Job.c.owner.not_in(select(Controller.c.id)),
)
_CLAIMABLE_ALONE = _UNSETTLED.where(_OTHERS).with_for_update(skip_locked=True)
_CLAIMABLE = _UNSETTLED.where(_UNCLAIMED).with_for_update(skip_locked=True)
_RAN_OUT = select(Controller.c.id).where(Controller.c.lease_until < DATABASE_NOW).with_for_update(skip_locked=True)


class LeaseLost(Exception):
    """Another controller owns this job now: stop, and touch nothing of it."""


@dataclass(frozen=True)
class Claim:
    """The right to write a job: its owner and the epoch at which it was claimed."""

    job_id: int
    owner: str
    epoch: int


@dataclass(frozen=True)
class NewTask:
    """A task as it is accepted. `spec` is what nodes are told; `secrets` are sealed."""

    view: TaskView
    name: str
    config: dict[str, Any]
    spec: dict[str, Any]
    secrets: bytes | None


def find_by_key(conn: Connection, key: str) -> list[int]:
    """The job, or the jobs of the batch in the order of their ranks, accepted with this idempotency key; or none."""
    first = conn.execute(select(Job.c.id, Job.c.batch_size).where(Job.c.key == key)).one_or_none()
    if first is None:
        return []
    others = [_key_in_batch(key, rank) for rank in range(1, first.batch_size)]
    found = conn.execute(select(Job.c.id).where(Job.c.key.in_(others)).order_by(Job.c.batch_rank)) if others else None
    return [first.id, *(found.scalars() if found else ())]


def known_keys(conn: Connection, keys: Sequence[str]) -> set[str]:
    """Those of these idempotency keys with which a job was accepted before."""
    return set(conn.execute(_KNOWN_KEYS, {"keys": list(keys)}).scalars()) if keys else set()


def reserve(conn: Connection, columns: Mapping[str, Any], *, batch_size: int = 1) -> list[int]:
    """Insert the rows of a job, or of a batch of them, and return their ids by rank. An id is never given again.

    `columns` are those of all; the key is the first's, and the others' are made of it.
    """
    return reserve_all(conn, [(columns, batch_size)])[0]


def reserve_all(conn: Connection, batches: Sequence[tuple[Mapping[str, Any], int]]) -> list[list[int]]:
    """`reserve` for several, all with the same columns: (columns, batch size) of each."""
    rows = [
        {**columns, "epoch": 1, "batch_rank": rank, "batch_size": size, "key": key and _key_in_batch(key, rank)}
        for columns, size in batches
        for key in [columns.get("key")]
        for rank in range(size)
    ]
    ids = iter(conn.execute(_INSERT_JOB, rows).scalars().all() if rows else ())
    return [list(islice(ids, size)) for _, size in batches]


def _key_in_batch(key: str, rank: int) -> str:
    return f"{key}\x1f{rank}" if rank else key


def add_tasks(writes: Writes, tasks: Sequence[NewTask], task_ids: Mapping[int, Sequence[str]]) -> None:
    """Insert the same tasks for every job of `task_ids`."""
    columns = [
        {
            "index": new.view.index,
            "name": new.name,
            "config": new.config,
            "spec": new.spec,
            "secrets": new.secrets,
            "needs": [codec.need_json(n) for n in new.view.needs],
            "recovery": codec.recovery_json(new.view.recovery),
            "num_nodes": new.view.num_nodes,
            **codec.task_columns(new.view),
        }
        for new in tasks
    ]
    for job_id, ids in task_ids.items():
        for task, task_id in zip(columns, ids, strict=True):
            writes.put(_INSERT_TASK, {"job_id": job_id, "task_id": task_id, **task})


def claim(conn: Connection, owner: str, now: float, *, limit: int, take_all: bool = False) -> list[Claim]:
    """Claim up to `limit` unsettled jobs that nobody living owns. `take_all`: this daemon is known to be alone.

    A lease that has run out is locked while its jobs are taken, so that its owner, if it lives after all, renews it
    either before, and keeps them, or after, and finds them gone.
    """
    if take_all:
        found = conn.execute(_CLAIMABLE_ALONE, {"claimer": owner, "most": limit})
    else:
        dead = list(conn.execute(_RAN_OUT, as_of(now)).scalars())
        found = conn.execute(_CLAIMABLE, {"dead": dead, "most": limit})
    ids = list(found.scalars())
    if not ids:
        return []
    rows = conn.execute(
        update(Job).where(Job.c.id.in_(ids)).values(owner=owner, epoch=Job.c.epoch + 1).returning(Job.c.id, Job.c.epoch)
    )
    return sorted((Claim(row.id, owner, row.epoch) for row in rows), key=lambda claim: claim.job_id)


def claims_of(conn: Connection, owner: str) -> list[Claim]:
    """The unsettled jobs of `owner`, as claimed."""
    rows = conn.execute(_OWN, {"owner": owner})
    return [Claim(row.id, owner, row.epoch) for row in rows]


def still_standing(conn: Connection, claims: Sequence[Claim]) -> set[Claim]:
    """Those of `claims` that no other controller has taken since, and whose jobs are not settled."""
    rows = conn.execute(_STANDING, {"job_ids": [claim.job_id for claim in claims]})
    return {Claim(row.id, row.owner, row.epoch) for row in rows} & set(claims)


def held(conn: Connection, job_id: int, owner: str) -> Claim | None:
    """The claim that `owner` holds on a job; None when the job is settled or in other hands."""
    where = (Job.c.id == job_id, Job.c.owner == owner, Job.c.settled.is_(False))
    epoch = conn.execute(select(Job.c.epoch).where(*where)).scalar_one_or_none()
    return Claim(job_id, owner, epoch) if epoch is not None else None


def guard(conn: Connection, claim: Claim, columns: Mapping[str, Any]) -> None:
    """Write `columns` of the job if it is still ours. Raises LeaseLost: the caller's transaction must roll back."""
    guard_all(conn, [(claim, columns)])


def guard_all(conn: Connection, wanted: Sequence[tuple[Claim, Mapping[str, Any]]]) -> None:
    """`guard` for several jobs, all with the same columns. Raises LeaseLost if one of them is not ours any more."""
    rows = [
        {**columns, "key_id": claim.job_id, "key_owner": claim.owner, "key_epoch": claim.epoch}
        for claim, columns in wanted
    ]
    if conn.execute(_UPDATE_JOB, rows if len(rows) > 1 else rows[0]).rowcount != len(rows):
        claims = ", ".join(f"{claim.job_id} at epoch {claim.epoch}" for claim, _ in wanted)
        raise LeaseLost(f"not owned any more, or one of them: {claims}")


def settle(writes: Writes, job_id: int) -> None:
    """Nothing is left to do for the job. Its guard is to have been written in the same transaction."""
    writes.put(_SETTLE, {"key_id": job_id})


def confirm(conn: Connection, claim: Claim) -> None:
    """See that the job is still ours, and keep it so until the transaction ends. Raises LeaseLost."""
    guard(conn, claim, {"owner": claim.owner})


def load(conn: Connection, job_ids: Iterable[int]) -> dict[int, JobView]:
    """The jobs as decision values, with the attempts that are not GONE."""
    ids = list(job_ids)
    attempts: dict[tuple[int, int], list[AttemptView]] = {}
    tasks: dict[int, list[TaskView]] = {}
    for (job_id, index, _), attempt in load_attempts(conn, ids).items():
        attempts.setdefault((job_id, index), []).append(attempt)
    for row in conn.execute(_TASKS, {"job_ids": ids}).mappings():
        its_attempts = tuple(attempts.get((row["job_id"], row["index"]), ()))
        tasks.setdefault(row["job_id"], []).append(codec.task(dict(row), its_attempts))
    jobs = {}
    for row in conn.execute(_JOBS, {"job_ids": ids}).mappings():
        cancel = Cancel(row["cancel_at"], row["cancel_grace_s"]) if row["cancel_at"] is not None else None
        jobs[row["id"]] = JobView(row["id"], tuple(tasks.get(row["id"], ())), cancel)
    return jobs


def load_attempts(conn: Connection, job_ids: Iterable[int]) -> dict[tuple[int, int, int], AttemptView]:
    """The attempts of these jobs that are not GONE, oldest first, by (job, task, generation)."""
    ids = list(job_ids)
    nodes: dict[tuple[int, int, int], list[NodeView]] = {}
    for row in conn.execute(_NODES, {"job_ids": ids}).mappings():
        nodes.setdefault((row["job_id"], row["task_index"], row["generation"]), []).append(codec.node(dict(row)))
    keys_and_rows = (
        ((row["job_id"], row["task_index"], row["generation"]), row)
        for row in conn.execute(_ATTEMPTS, {"job_ids": ids}).mappings()
    )
    return {key: codec.attempt(dict(row), tuple(nodes.get(key, ()))) for key, row in keys_and_rows}


def save(writes: Writes, before: JobView, after: JobView, now: float) -> None:
    """Write what differs. The job's own row is `guard`'s."""
    old_tasks = {t.index: t for t in before.tasks}
    for task in after.tasks:
        old = old_tasks[task.index]
        if task is old or task == old:
            continue
        changed = codec.changed_task_columns(old, task)
        if changed:
            writes.put(_UPDATE_TASK, {**changed, "key_job_id": after.id, "key_index": task.index})
        _save_attempts(writes, after.id, old, task, now)


def _save_attempts(writes: Writes, job_id: int, old: TaskView, new: TaskView, now: float) -> None:
    known = {a.generation: a for a in old.attempts}
    kept = {a.generation for a in new.attempts}
    for attempt in new.attempts:
        if attempt.generation in known:
            _update_attempt(writes, (job_id, new.index), known[attempt.generation], attempt, now)
        else:
            _insert_attempt(writes, (job_id, new.index), attempt)
    born_and_gone = range(old.next_generation, new.next_generation)
    assert all(g in kept for g in born_and_gone), "an attempt was requested and forgotten in one step"
    for generation, attempt in known.items():
        if generation not in kept:
            key = _key((job_id, new.index), generation)
            stopped = {} if _has_stopped(attempt) else {"stopped_at": now}
            writes.put(_UPDATE_ATTEMPT, {**key, "state": AttemptState.GONE.value, "gone_at": now, **stopped})
            writes.put(_STOP_NODES, key)


def _has_stopped(attempt: AttemptView) -> bool:
    return attempt.state in (AttemptState.STOPPED, AttemptState.GONE)


def _key(task: tuple[int, int], generation: int) -> dict[str, int]:
    """An attempt's key, as `_UPDATE_ATTEMPT` wants it."""
    return {"key_job_id": task[0], "key_task_index": task[1], "key_generation": generation}


def _insert_attempt(writes: Writes, task: tuple[int, int], attempt: AttemptView) -> None:
    key = {"job_id": task[0], "task_index": task[1], "generation": attempt.generation}
    writes.put(_INSERT_ATTEMPT, {**key, **codec.attempt_columns(attempt)})
    for node in attempt.nodes:
        writes.put(_INSERT_NODE, {**key, "rank": node.rank, **codec.node_columns(node)})


def _update_attempt(writes: Writes, task: tuple[int, int], old: AttemptView, new: AttemptView, now: float) -> None:
    if old is new or old == new:
        return
    key = _key(task, new.generation)
    changed = codec.changed_attempt_columns(old, new)
    if _has_stopped(new) and not _has_stopped(old):
        changed["stopped_at"] = now
    if changed:
        writes.put(_UPDATE_ATTEMPT, {**changed, **key})
    for node, before in zip(new.nodes, old.nodes, strict=True):
        changed = codec.changed_node_columns(before, node)
        if changed:
            writes.put(_UPDATE_NODE, {**changed, **key, "key_rank": node.rank})


def record_notes(writes: Writes, job_id: int, notes: Sequence[Note], now: float) -> None:
    """Append to the job's timeline."""
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
        writes.put(_INSERT_EVENT, row)


def is_noted(conn: Connection, job_id: int, note: Note) -> bool:
    """Whether the job's timeline has this very line."""
    of = {"job_id": job_id, "task_index": note.task, "generation": note.generation, "rank": note.rank}
    same = (EventT.c[name] == value for name, value in {**of, "kind": note.kind}.items())
    return note.data in conn.execute(select(EventT.c.data).where(*same)).scalars().all()


def record_lifetimes(
    writes: Writes, key: tuple[int, int, int], lifetimes: Mapping[int, tuple[float | None, float | None]]
) -> None:
    """Keep the cloud's own word on when machines (rank → launched, ended) began and ceased to be billed."""
    for rank, (launched_at, ended_at) in lifetimes.items():
        values = {"launched_at": launched_at, "ended_at": ended_at}
        known = {name: value for name, value in values.items() if value is not None}
        if known:
            writes.put(_UPDATE_NODE, {**known, **_key(key[:2], key[2]), "key_rank": rank})


def advance_checkpoint_seq(conn: Connection, key: tuple[int, int, int], rank: int, seq: int) -> bool:
    """Whether the checkpoint message `seq` of a node is new; remembers it."""
    of = {**_key(key[:2], key[2]), "key_rank": rank}
    return conn.execute(_ADVANCE, {**of, "seq": seq}).rowcount == 1


def checkpoint_seqs(conn: Connection, job_ids: Sequence[int]) -> dict[tuple[tuple[int, int, int], int], int]:
    """The last checkpoint message that was recorded of each node, by attempt and rank, where there was one."""
    rows = conn.execute(_CHECKPOINT_SEQS, {"job_ids": list(job_ids)})
    return {((r.job_id, r.task_index, r.generation), r.rank): r.checkpoint_seq for r in rows}


def task_ids(conn: Connection, job_id: int) -> tuple[str, ...]:
    """SKYPILOT_TASK_ID of each task of a job, in order."""
    return tuple(conn.execute(select(Task.c.task_id).where(Task.c.job_id == job_id).order_by(Task.c.index)).scalars())


def live_attempts(conn: Connection) -> list[tuple[int, int, int]]:
    """(job, task, generation) of every attempt that is not GONE."""
    return [(row.job_id, row.task_index, row.generation) for row in conn.execute(_LIVE)]


def live_among(conn: Connection, keys: Collection[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """Those of these attempts that are not GONE."""
    ids = sorted({key[0] for key in keys})
    found: set[tuple[int, int, int]] = set()
    for start in range(0, len(ids), _AT_ONCE):
        rows = conn.execute(_LIVE_OF_JOBS, {"job_ids": ids[start : start + _AT_ONCE]})
        found.update((row.job_id, row.task_index, row.generation) for row in rows)
    return found & set(keys)
