"""`perdure controller rotate-key`: replaces the key that signs attempt tokens and seals secrets. No controller may run.

The new key is first written to `secret.key`, before the others. Then one transaction re-seals every secret under it and
records its id as the current one. A controller uses the key that the database names, so an interrupted rotation leaves
the old key in use, and the next run completes it with the same new key.

A retired key still verifies the tokens of attempts that began before. `prune` removes it when the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, Integer, bindparam, func, or_, select, tuple_, update

from perdure.controller.peers.keyring_check import KEY_FACT
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.keys import STOP_GRACE_S
from perdure.controller.runtime.security.keyring import KEY_FILE, Keyring, UnknownKey, fingerprint
from perdure.controller.store import job_schedules
from perdure.controller.store.engine.database import database_now
from perdure.controller.store.records import facts
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Attempt, Task
from perdure.controller.store.services import records
from perdure.controller.store.services.records import Services, Versions
from perdure.controller.store.tables import ControllerRow
from perdure.recovery.statuses import AttemptState

Controllers = ControllerRow.__table__  # type: ignore[attr-defined]

_RETIRED = "keyring.retired."  # a fact per retired key: when, on the clock that attempts are recorded with
_BATCH_SIZE = 500
_SEALED = (
    select(Task.c.job_id, Task.c.index, Task.c.secrets)
    .where(
        Task.c.secrets.is_not(None),
        tuple_(Task.c.job_id, Task.c.index) > tuple_(bindparam("job", type_=Integer), bindparam("task", type_=Integer)),
    )
    .order_by(Task.c.job_id, Task.c.index)
    .limit(bindparam("size", type_=Integer))
)
_RESEAL = (
    update(Task)
    .where(Task.c.job_id == bindparam("key_job"), Task.c.index == bindparam("key_index"))
    .values(secrets=bindparam("sealed"))
)
_RESEAL_CLUSTER = update(Cluster).where(Cluster.c.id == bindparam("key_id")).values(secrets=bindparam("sealed"))


class CannotRotate(SettingsError):
    """The key in use did not change. The text says why and what to do."""


def rotate(folder: Path, database: Engine, *, now: float, is_alone: bool) -> tuple[str, int]:
    """Replace the key of `database`, whose keyring is in `folder`. Returns the new key's id, and the number of secrets
    that were sealed again.

    `now`: on the clock that attempts are recorded with. `is_alone`: the caller holds the lock of the only home, so that
    no controller runs. Otherwise the leases show whether one does. Raises CannotRotate, WrongKeyring, OSError, and what
    the database raises.
    """
    if not (folder / KEY_FILE).exists():
        raise CannotRotate(f"{folder / KEY_FILE} does not exist: there is no key to replace")
    keyring = Keyring.load_or_create(folder)
    with database.connect() as conn:
        current = facts.get(conn, KEY_FACT)
        _require_no_controllers(conn, now, is_alone=is_alone)
    if current is None:
        raise CannotRotate("no controller has used this database yet: there is no key to replace")
    if keyring.using(current) is None:
        raise CannotRotate(
            f"{folder / KEY_FILE} lacks the key {current}, with which this database's secrets are sealed; "
            "rotate where the file has it, or copy it from there"
        )
    if fingerprint(keyring.key) == current:
        keyring = keyring.with_new_key()
        keyring.save_keys(folder)
    with database.begin() as conn:
        if facts.lock(conn, KEY_FACT) != current:
            raise CannotRotate("another rotation has just replaced the key; copy its secret.key here")
        _require_no_controllers(conn, now, is_alone=is_alone)
        count = _reseal_all(conn, keyring)
        facts.set(conn, f"{_RETIRED}{current}", repr(now))
        facts.set(conn, KEY_FACT, fingerprint(keyring.key))
    return fingerprint(keyring.key), count


def prune(conn: Connection, folder: Path, keyring: Keyring, *, now: float, speed: float) -> Keyring:
    """`keyring` without the retired keys that no attempt needs any more; `secret.key` in `folder` loses them, too.

    A machine whose attempt is gone may still connect for STOP_GRACE_S. A key that was never in use is kept: it is the
    next one. A file that cannot be written, such as one of a read-only volume, keeps all keys.
    """
    unneeded = set[str]()
    for key in keyring.others:
        retired_at = facts.get(conn, f"{_RETIRED}{fingerprint(key)}")
        if retired_at is not None and not _is_needed(conn, float(retired_at), now - STOP_GRACE_S * speed):
            unneeded.add(fingerprint(key))
    if not unneeded:
        return keyring
    pruned = keyring.without(unneeded)
    try:
        pruned.save_keys(folder)
    except OSError:
        return keyring
    return pruned


def _is_needed(conn: Connection, retired_at: float, gone_since: float) -> bool:
    """Whether a node may still show a token of an attempt that was requested before `retired_at`."""
    may_connect = or_(Attempt.c.state != AttemptState.GONE.value, Attempt.c.gone_at > gone_since)
    query = select(Attempt.c.job_id).where(Attempt.c.requested_at <= retired_at, may_connect).limit(1)
    return conn.execute(query).first() is not None


def _require_no_controllers(conn: Connection, now: float, *, is_alone: bool) -> None:
    """Raises CannotRotate while a controller runs, which would go on to seal and sign with the old key."""
    if is_alone:
        return
    is_live = Controllers.c.lease_until >= database_now(conn, now)
    live = conn.execute(select(func.count()).select_from(Controllers).where(is_live)).scalar_one()
    if live:
        raise CannotRotate(
            f"{live} controller(s) of this database still run, or stopped a moment ago without releasing their leases; "
            "stop all of them (jobs continue), and try again"
        )


def _reseal_all(conn: Connection, keyring: Keyring) -> int:
    count = 0
    for rows in _sealed_tasks(conn):
        changed = []
        for job_id, index, sealed in rows:
            with _naming(f"job {job_id}"):
                changed.append({"key_job": job_id, "key_index": index, "sealed": keyring.reseal(bytes(sealed))})
        conn.execute(_RESEAL, changed)
        count += len(changed)
    return count + _reseal_clusters(conn, keyring) + _reseal_schedules(conn, keyring) + _reseal_services(conn, keyring)


def _reseal_services(conn: Connection, keyring: Keyring) -> int:
    """The tokens and certificates of services, and the tasks of their versions."""
    count = 0
    for row in conn.execute(select(Services.c.id, Services.c.secrets).where(Services.c.secrets.is_not(None))).all():
        with _naming(f"service {row.id}"):
            records.change(conn, row.id, secrets=keyring.reseal(bytes(row.secrets)))
            count += 1
    query = select(Versions.c.service_id, Versions.c.version, Versions.c.config).where(Versions.c.config.is_not(None))
    for row in conn.execute(query).all():
        with _naming(f"service {row.service_id}"):
            config = keyring.reseal(bytes(row.config))
            records.change_version(conn, row.service_id, row.version, config=config)
            count += 1
    return count


def _reseal_clusters(conn: Connection, keyring: Keyring) -> int:
    """The secrets with which a cluster is started again. Clusters are few: one batch."""
    changed = []
    for cluster_id, sealed in conn.execute(
        select(Cluster.c.id, Cluster.c.secrets).where(Cluster.c.secrets.is_not(None))
    ):
        with _naming(f"cluster {cluster_id}"):
            changed.append({"key_id": cluster_id, "sealed": keyring.reseal(bytes(sealed))})
    if changed:
        conn.execute(_RESEAL_CLUSTER, changed)
    return len(changed)


def _reseal_schedules(conn: Connection, keyring: Keyring) -> int:
    """The tasks of schedules. They are few: one by one."""
    schedules = job_schedules.list_all(conn)
    for row in schedules:
        with _naming(f"schedule {row.name}"):
            job_schedules.set_tasks(conn, row.id, keyring.reseal(bytes(row.tasks)))
    return len(schedules)


def _sealed_tasks(conn: Connection) -> Iterator[list[tuple[int, int, bytes]]]:
    place = {"job": -1, "task": -1, "size": _BATCH_SIZE}
    while rows := [(row["job_id"], row["index"], row["secrets"]) for row in conn.execute(_SEALED, place).mappings()]:
        yield rows
        place |= {"job": rows[-1][0], "task": rows[-1][1]}


@contextmanager
def _naming(owner: str) -> Iterator[None]:
    try:
        yield
    except UnknownKey as error:
        raise CannotRotate(f"{owner}: its {error}") from error
