"""Two controllers on one database, in one thread: letters, claims, and the end of a transaction that nobody heard."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DataError, OperationalError

from perdure.controller.leases import Controllers
from perdure.controller.mail import Incoming, Outgoing, read, written
from perdure.controller.reconcile import Reconciler
from perdure.controller.store import connections, jobs, letters, queries
from perdure.controller.store.database import database_now
from perdure.controller.store.letters import Letter, Letters
from perdure.controller.turns import Checkpoint, Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.attempts import CALL_BACK_S
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase

CHECKPOINT = Checkpoint((1, 0, 1), 0, 7, Note("checkpoint.durable", 0, 1, 0, Reason.SUBMITTED, data={"step": 3}))


class Other:
    """A second controller, whose jobs are none, beside the world's own."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.reconciler: Reconciler = world.controller("other")
        self.outgoing = Outgoing(world.database, world.clock)
        self.reconciler.forward = self.outgoing.forward
        self.incoming = Incoming(world.database, "one", world.reconciler.post)

    def says(self, turn: Turn) -> None:
        """It is told something, and passes it on; answered once that is safe."""
        done = self.reconciler.post(turn)
        while self.reconciler.turn(block=False):
            pass
        done.result(30)

    def owner_reads(self) -> int:
        count = self.incoming.look()
        self.world.settle()
        return count


@pytest.fixture
def other(world: Any) -> Any:
    made = Other(world)
    yield made
    made.outgoing.close()


def left(world: Any) -> int:
    with world.database.connect() as conn:
        return len(conn.execute(select(Letters)).all())


@pytest.mark.parametrize(
    "turn",
    [
        Turn(1, events.CancelRequested(3.5)),
        Turn(1, events.NodeReported(0, 1, 2, NodePhase.ENDED, "10.0.0.1", 3, "run", True, True, "why")),
        Turn(1, events.NoticeGiven(0, 1, 0, 12.5)),
        Turn(1, checkpoint=CHECKPOINT),
        Turn(1, notes=(Note("job.rehearsal", rank=1, message="a"), Note("b", reason=Reason.PREEMPTED))),
    ],
    ids=lambda turn: type(turn.event).__name__,
)
def test_a_letter_says_what_was_said(turn: Turn) -> None:
    body = written(turn)
    assert body is not None
    again = read(Letter(5, 1, body))
    assert again.letter == 5
    for name in ("job_id", "event", "checkpoint", "notes"):
        assert getattr(again, name) == getattr(turn, name)


def test_what_concerns_this_controller_alone_is_no_letter() -> None:
    assert written(Turn(1)) is None
    assert written(Turn(1, events.MachinesSeen(0, 1, {}))) is None
    assert written(Turn(1, events.NodeSilent(0, 1, 0))) is None


def test_what_anybody_is_told_reaches_the_owner_once(world: Any, other: Any) -> None:
    job = world.submit()
    for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
        other.says(Turn(job, events.NodeReported(0, 1, 0, phase)))
    other.says(Turn(job, checkpoint=Checkpoint((job, 0, 1), 0, 1, Note("checkpoint.saved", 0, 1, 0))))
    assert left(world) == 4
    assert other.owner_reads() == 4
    assert world.job(job)["status"] == "RUNNING"
    assert world.kinds(job).count("checkpoint.saved") == 1
    assert left(world) == 0
    assert other.owner_reads() == 0


def test_a_letter_is_recorded_once_whoever_reads_it_again(world: Any, other: Any) -> None:
    job = world.submit()
    other.says(Turn(job, notes=(Note("job.rehearsal"),)))
    with world.database.connect() as conn:
        (letter,) = letters.waiting(conn, "one")
    again, done = read(letter).awaited()
    world.post(read(letter))
    world.post(again)
    assert done.done()
    assert world.kinds(job).count("job.rehearsal") == 1


def test_a_checkpoint_that_was_overtaken_by_a_later_one_is_told_once(world: Any, other: Any) -> None:
    job = world.submit()
    world.run(job)
    first, later = (
        Turn(job, checkpoint=Checkpoint((job, 0, 1), 0, seq, Note("checkpoint.saved", 0, 1, 0, data={"step": seq})))
        for seq in (1, 2)
    )
    other.says(first)
    world.post(later)
    assert other.owner_reads() == 1
    world.post(replace(first, done=Future()))
    world.post(replace(later, done=Future()))
    assert world.kinds(job).count("checkpoint.saved") == 2


def test_a_letter_waits_until_its_job_is_in_hand(world: Any, other: Any) -> None:
    job = world.submit()
    other.says(Turn(job, events.CancelRequested(0)))
    world.reconciler._jobs.clear()  # claimed, and not taken up yet
    assert other.owner_reads() == 1
    assert left(world) == 1
    with world.database.connect() as conn:
        world.reconciler.adopt(jobs.claims_of(conn, "one"))
    assert other.owner_reads() == 1
    assert world.job(job)["status"] == "CANCELLED"


@pytest.mark.parametrize(
    "body",
    [
        {"event": {"kind": "SomethingNewer", "task": 0}},
        {"event": {"kind": "CancelRequested", "a_newer_field": 1}},
        {"event": {"kind": "NodeReported", "task": 0, "generation": 1, "rank": 0, "phase": "dreaming"}},
        {"checkpoint": {"key": [1, 0]}},
        {"notes": ["a newer note"]},
    ],
)
def test_a_letter_of_a_newer_version_is_left_to_one_that_can_read_it(
    world: Any, other: Any, body: dict[str, Any]
) -> None:
    job = world.submit()
    with world.database.begin() as conn:
        letters.put(conn, job, body, world.clock.now())
    other.says(Turn(job, notes=(Note("job.rehearsal"),)))
    assert other.owner_reads() == 1
    assert world.kinds(job).count("job.rehearsal") == 1, "what comes after it is read"
    assert other.owner_reads() == 0
    assert left(world) == 1, "a newer daemon may have the job next"


def test_letters_for_settled_jobs_are_dropped(world: Any, other: Any) -> None:
    job = world.submit()
    early = Turn(job, events.NoticeGiven(0, 1, 0, 1.0))
    other.says(early)
    world.tell(job, events.CancelRequested(0))
    world.pass_time(30)
    other.says(Turn(job, events.NoticeGiven(0, 1, 0, 2.0)))
    other.says(Turn(job + 1, events.NoticeGiven(0, 1, 0, 2.0)))
    assert left(world) == 1, "what was written before the end, and nothing else"
    with world.database.begin() as conn:
        assert letters.drop_settled(conn) == 1


def test_what_was_lost_on_the_way_to_a_job_that_moved_is_forwarded(world: Any, other: Any) -> None:
    job = world.submit()
    with world.database.begin() as conn:
        assert jobs.claim(conn, "other", world.clock.now(), limit=10, take_all=True)
    world.reconciler.forward = other.outgoing.forward
    done = world.reconciler.post(Turn(job, events.CancelRequested(0)))
    world.settle()
    done.result(30)
    assert world.reconciler.view(job) is None
    with world.database.connect() as conn:
        assert len(letters.waiting(conn, "other")) == 1


def test_many_letters_are_written_together_and_read_in_their_order(world: Any, other: Any) -> None:
    ids = [world.submit() for _ in range(3)]
    said = [Turn(id, notes=(Note("said", data={"number": n}),)) for n in range(120) for id in ids]
    done = [other.reconciler.post(turn) for turn in said]
    while other.reconciler.turn(block=False):
        pass
    assert all(one.result(30) is None for one in done)
    while left(world):
        assert other.owner_reads() > 0
    for id in ids:
        with world.database.connect() as conn:
            lines = [line["data"]["number"] for line in queries.timeline(conn, id) if line["kind"] == "said"]
        assert lines == list(range(120))


def test_a_letter_that_was_given_its_number_early_and_came_late_is_read(world: Any) -> None:
    """Numbers are given before they are committed: a higher one may be seen first."""
    job = world.submit()
    body = written(Turn(job, notes=(Note("said"),)))
    now = [0.0]
    posted: list[Turn] = []
    incoming = Incoming(world.database, "one", posted.append, lambda: now[0])
    rows = [{"id": number, "job_id": job, "at": 0.0, "body": body} for number in (2000, 1990, 100)]
    for number, row in enumerate(rows, 1):
        with world.database.begin() as conn:
            conn.execute(insert(Letters).values(**row))
        found = incoming.look()
        assert found == (number < 3), "the last comes too late for a look at the newest"
    now[0] = 2.0
    assert incoming.look() == 1
    assert [turn.letter for turn in posted] == [2000, 1990, 100]


def lease(world: Any, owner: str, for_s: float) -> None:
    with world.database.begin() as conn:
        now = conn.execute(select(database_now(conn, world.clock.now()))).scalar()
        row = {"id": owner, "started_at": now, "lease_until": now + for_s, "endpoint": "", "knows": ""}
        conn.execute(insert(Controllers).values(**row))


def test_only_the_jobs_of_the_dead_are_claimed(world: Any) -> None:
    job = world.submit()
    lease(world, "one", 3600)
    lease(world, "other", 3600)
    with world.database.begin() as conn:
        assert jobs.claim(conn, "other", world.clock.now(), limit=10) == []
        conn.execute(Controllers.update().where(Controllers.c.id == "one").values(lease_until=0.0))
        assert [c.job_id for c in jobs.claim(conn, "other", world.clock.now(), limit=10)] == [job]
        assert jobs.claim(conn, "other", world.clock.now(), limit=10) == []


def test_one_that_was_away_lets_go_of_what_was_taken(world: Any) -> None:
    lost, kept = world.submit(), world.submit()
    with world.database.begin() as conn:
        jobs.claim(conn, "other", world.clock.now(), limit=1, take_all=True)
    done: Future[None] = world.reconciler.recheck()
    world.settle()
    assert done.done()
    assert world.reconciler.view(lost) is None
    assert world.reconciler.view(kept) is not None


def test_without_its_lease_it_touches_nothing_outside(world: Any) -> None:
    world.reconciler.dispatcher.may_act = lambda: False
    job = world.submit()
    world.pass_time(3)
    assert world.cloud.calls["launch"] == 0
    world.reconciler.dispatcher.may_act = lambda: True
    world.pass_time(3)
    assert world.cloud.calls["launch"] == 1
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_a_commit_whose_answer_was_lost_counts_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction is recorded, and for each the connection breaks before that is heard."""
    record, broken = world.reconciler._recorder.record, set()

    def break_once(decisions: Any, now: float) -> Any:
        added, turn = record(decisions, now), decisions[0].turn
        if added[0] is not None and id(turn) not in broken:
            broken.add(id(turn))
            kept.append(turn)
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))
        return added

    kept: list[Any] = []
    monkeypatch.setattr(world.reconciler._recorder, "record", break_once)
    job = world.submit()
    world.pass_time(5)
    for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
        world.report(job, phase)
        world.pass_time(3)
    assert world.job(job)["status"] == "RUNNING"
    assert world.view(job) == world.reconciler.view(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(20)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.job(job)["generation"] == 1
    assert world.cloud.calls["launch"] == 1
    assert world.living() == []
    assert len(kept) >= 6


def test_what_the_database_never_takes_holds_up_nobody_else(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = world.submit(), world.submit()
    record = world.reconciler._recorder.record

    def refuse(decisions: Any, now: float) -> Any:
        if any(decision.turn.job_id == stuck for decision in decisions):
            raise DataError("UPDATE", {}, Exception("text fields cannot contain NUL"))
        return record(decisions, now)

    monkeypatch.setattr(world.reconciler._recorder, "record", refuse)
    world.report(stuck, NodePhase.BOOTED)
    world.run(other)
    assert world.job(other)["status"] == "RUNNING", "with no pause"
    monkeypatch.undo()
    world.pass_time(40)
    assert world.view(stuck).tasks[0].attempts[0].nodes[0].phase is NodePhase.BOOTED


def test_a_node_is_silent_only_if_nobody_living_hears_it(world: Any) -> None:
    job = world.submit()
    world.run(job)
    place = ((job, 0, 1), 0)
    now = world.clock.now()
    lease(world, "other", 3600)
    with world.database.begin() as conn:
        assert connections.unheld(conn, "one", now) == [place]
        connections.hold(conn, place, controller="other", token="first", now=now)
        assert connections.unheld(conn, "one", now) == []
        connections.hold(conn, place, controller="other", token="second", now=now)
        assert not connections.release_all(conn, [(place, "first")]), "it has called again"
        assert connections.held(conn, [job], now) == {place}
        conn.execute(Controllers.update().values(lease_until=0.0))
        assert connections.unheld(conn, "one", now) == [place]


def test_a_job_that_moves_keeps_the_nodes_that_others_hear(world: Any) -> None:
    heard, unheard = world.submit(), world.submit()
    for job in (heard, unheard):
        world.run(job)
    lease(world, "third", 3600)
    with world.database.begin() as conn:
        connections.hold(conn, ((heard, 0, 1), 0), controller="third", token="t", now=world.clock.now())
    world.restart()
    assert world.view(unheard).tasks[0].attempts[0].nodes[0].connected, "it may call yet"
    world.pass_time(CALL_BACK_S + 1)
    assert world.view(heard).tasks[0].attempts[0].nodes[0].connected
    assert not world.view(unheard).tasks[0].attempts[0].nodes[0].connected
