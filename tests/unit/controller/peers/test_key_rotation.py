"""Replacing the key: sealed secrets follow, tokens of live attempts stay valid, and an interruption can be repeated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, insert, select, update

from perdure.controller.peers import key_rotation
from perdure.controller.peers.key_rotation import CannotRotate
from perdure.controller.peers.keyring_check import load_database_keyring, require_unchanged
from perdure.controller.peers.lease import Lease
from perdure.controller.runtime.security.keyring import KEY_FILE, Keyring, WrongKeyring, fingerprint
from perdure.controller.store import job_schedules
from perdure.controller.store.clusters.tables import ClusterRow, JobScheduleRow
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.jobs import Attempt, Task
from unit.controller.world import World

AN_HOUR_S = 3600.0
SECRETS = {"WANDB_API_KEY": "hunter2"}


class Home:
    """A keyring folder and the world whose database it belongs to, with one live attempt and sealed secrets."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world, self.database = folder, world, world.database
        self.before = self.start()
        self.jobs = [world.submit() for _ in range(3)]
        with self.database.begin() as conn:
            conn.execute(update(Task).where(Task.c.job_id != self.jobs[1]).values(secrets=self.before.seal(SECRETS)))
        self.attempt = (self.jobs[0], 0, 1)
        self.token = self.before.attempt_token(self.attempt)

    def start(self) -> Keyring:
        """The keyring that a controller loads when it starts."""
        with self.database.begin() as conn:
            keyring = load_database_keyring(self.folder, conn, is_alone=False, others_live=False)
            return key_rotation.prune(conn, self.folder, keyring, now=self.world.clock.now(), speed=1.0)

    def rotate(self) -> tuple[str, int]:
        return key_rotation.rotate(self.folder, self.database, now=self.world.clock.now(), is_alone=False)

    def unsealed(self, keyring: Keyring) -> list[dict[str, str]]:
        with self.database.connect() as conn:
            return [
                keyring.unseal(sealed)
                for sealed in conn.execute(select(Task.c.secrets).order_by(Task.c.job_id)).scalars()
            ]


@pytest.fixture
def home(tmp_path: Path, world: World) -> Home:
    return Home(tmp_path / "keyring", world)


def test_rotation__reseals_secrets_and_keeps_tokens_of_live_attempts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_rotation, "_BATCH_SIZE", 1)
    key_id, count = home.rotate()
    assert count == 2
    keyring = home.start()
    assert fingerprint(keyring.key) == key_id != fingerprint(home.before.key)
    assert home.unsealed(keyring.without([fingerprint(home.before.key)])) == [SECRETS, {}, SECRETS]
    assert keyring.verify_attempt_token(home.token) == home.attempt
    assert home.rotate()[0] not in (key_id, fingerprint(home.before.key))
    assert home.start().verify_attempt_token(home.token) == home.attempt, "after another rotation"


def test_rotation__reseals_the_tasks_of_schedules(home: Home) -> None:
    columns = JobScheduleRow(
        name="nightly", user="", cron="0 3 * * *", time_zone="UTC", missed="once", overlaps=False, paused=False,
        tasks=home.before.seal(SECRETS), uploads=[], created_at=0.0,
    ).model_dump(exclude={"id", "name", "last_result"})  # fmt: skip
    with home.database.begin() as conn:
        job_schedules.save(conn, "nightly", columns)
    assert home.rotate()[1] == 3, "two tasks and a schedule"
    keyring = home.start().without([fingerprint(home.before.key)])
    with home.database.connect() as conn:
        (row,) = job_schedules.list_all(conn)
    assert keyring.unseal(row.tasks) == SECRETS


def test_rotation__reseals_the_secrets_of_clusters(home: Home) -> None:
    row = ClusterRow(name="dev", wanted="STOPPED", created_at=0.0, launched_at=0.0, active_at=0.0, config={})
    cluster = {**row.model_dump(exclude={"id"}), "secrets": home.before.seal(SECRETS)}
    with home.database.begin() as conn:
        conn.execute(insert(Cluster).values(**cluster))
    assert home.rotate()[1] == 3, "two tasks and a cluster"
    keyring = home.start().without([fingerprint(home.before.key)])
    with home.database.connect() as conn:
        assert keyring.unseal(conn.execute(select(Cluster.c.secrets)).scalar_one()) == SECRETS


def test_retired_key__is_removed_when_its_last_attempt_cannot_connect_any_more(home: Home) -> None:
    home.rotate()
    with home.database.begin() as conn:
        conn.execute(update(Attempt).values(state="GONE", gone_at=home.world.clock.now()))
    home.world.clock.advance(AN_HOUR_S - 1)
    with home.database.begin() as conn:  # one that began after the rotation does not need it
        columns = {"job_id": 9, "task_index": 0, "generation": 1, "state": "RUNNING", "offer": {}}
        conn.execute(insert(Attempt).values(**columns, requested_at=home.world.clock.now()))
    assert home.start().verify_attempt_token(home.token) == home.attempt
    home.world.clock.advance(2)
    keyring = home.start()
    assert keyring.others == ()
    assert (home.folder / KEY_FILE).read_text() == f"{keyring.key.hex()}\n"


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["commit", "after_cursor_execute"])
def test_interrupted_rotation__leaves_the_old_key_in_use_and_is_completed_by_the_next(home: Home, moment: str) -> None:
    def kill(*_args: object, **_kw: object) -> None:
        if Keyring.load_or_create(home.folder).key != home.before.key:
            raise Killed

    event.listen(home.database, moment, kill)
    with pytest.raises(Killed):
        home.rotate()
    event.remove(home.database, moment, kill)
    written = Keyring.load_or_create(home.folder)
    assert written.others == (home.before.key,), "it was killed between the file and the database"
    for _ in range(2):  # a controller can be started meanwhile, and its prune keeps the next key
        keyring = home.start()
        assert keyring.key == home.before.key
        assert home.unsealed(home.before) == [SECRETS, {}, SECRETS]
    assert home.rotate() == (fingerprint(written.key), 2)
    assert Keyring.load_or_create(home.folder) == written, "no third key is made"
    assert home.unsealed(Keyring(written.key, "")) == [SECRETS, {}, SECRETS]


def test_rotation__is_refused_while_a_controller_runs(home: Home) -> None:
    lease = Lease(home.database, home.world.clock, alone=False)
    lease.start("http://127.0.0.1:1")
    with pytest.raises(CannotRotate, match="stop all of them"):
        home.rotate()
    assert Keyring.load_or_create(home.folder) == home.before, "not even the file has changed"
    lease.release()
    home.rotate()


def test_controller__that_starts_during_a_rotation_notices_it(home: Home) -> None:
    keyring = home.start()
    with home.database.begin() as conn:
        require_unchanged(conn, keyring)
    home.rotate()
    with home.database.begin() as conn, pytest.raises(WrongKeyring, match="start the controller again"):
        require_unchanged(conn, keyring)


def test_other_controllers__need_the_new_file(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in os.listdir(home.folder):
        (other / name).write_bytes((home.folder / name).read_bytes())
    home.rotate()
    with home.database.begin() as conn, pytest.raises(WrongKeyring, match="perhaps `rotate-key` replaced it"):
        load_database_keyring(other, conn, is_alone=False, others_live=False)
    with pytest.raises(CannotRotate, match="lacks the key"):
        key_rotation.rotate(other, home.database, now=home.world.clock.now(), is_alone=False)
    (other / KEY_FILE).write_bytes((home.folder / KEY_FILE).read_bytes())
    expected = home.start()
    with home.database.begin() as conn:
        assert load_database_keyring(other, conn, is_alone=False, others_live=False) == expected


def test_rotation__without_a_key_or_of_a_lost_one_changes_nothing(tmp_path: Path, database: Engine, home: Home) -> None:
    with pytest.raises(CannotRotate, match="no key to replace"):
        key_rotation.rotate(tmp_path / "empty", database, now=0.0, is_alone=True)
    assert not (tmp_path / "empty").exists()
    with home.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id == home.jobs[2]).values(secrets=Keyring(b"?" * 32, "").seal({})))
    with pytest.raises(CannotRotate, match=f"job {home.jobs[2]}: its secrets are sealed with a key"):
        home.rotate()
    assert home.start().key == home.before.key


def test_rotation__of_a_database_that_no_controller_used_is_refused(tmp_path: Path, database: Engine) -> None:
    Keyring.load_or_create(tmp_path / "new")
    with pytest.raises(CannotRotate, match="no controller has used this database"):
        key_rotation.rotate(tmp_path / "new", database, now=0.0, is_alone=True)
