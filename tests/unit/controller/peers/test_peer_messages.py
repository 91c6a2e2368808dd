"""Messages between daemons: encoding, the outbox, the inbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DataError, OperationalError
from structlog.testing import capture_logs

from perdure.controller.peers.peer_messages import InboxReader, Outbox, decode, encode, send_to_owners
from perdure.controller.reconcile.failed_events import EventSetAside
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent
from perdure.controller.store.queries import job_listing as queries
from perdure.controller.store.records import job_claims, peer_messages
from perdure.controller.store.records.peer_messages import PeerMessage, PeerMessages
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from support.helpers.timing import scaled
from unit.controller.world import World

CHECKPOINT = CheckpointReport(
    (1, 0, 1), 0, 7, TimelineEntry("checkpoint.durable", 0, 1, 0, Reason.SUBMITTED, data={"step": 3})
)


class OtherDaemon:
    """A second daemon on the database of the world, which owns no jobs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.controller = world.controller("other")
        self.outbox = Outbox(world.database, world.clock)
        self.inbox = InboxReader(world.database, "one", world.inbox.submit)

    def receive(self, job_event: JobEvent) -> None:
        """Receive an event of another daemon's job, and wait until it is forwarded."""
        done = self.controller.inbox.submit(job_event)
        self.world.forward = self.outbox.forward
        self.controller.settle()
        done.result(scaled(30))

    def owner_reads(self) -> int:
        count = self.inbox.poll()
        self.world.settle()
        return count


@pytest.fixture
def other(world: World) -> Iterator[OtherDaemon]:
    made = OtherDaemon(world)
    yield made
    made.outbox.close()


def count_messages(world: World) -> int:
    with world.database.connect() as conn:
        return len(conn.execute(select(PeerMessages)).all())


@pytest.mark.parametrize(
    "job_event",
    [
        JobEvent(1, events.CancelRequested(3.5)),
        JobEvent(1, events.NodeReported(0, 1, 2, NodePhase.ENDED, "10.0.0.1", 3, "run", True, True, "why")),
        JobEvent(1, events.PreemptionNotice(0, 1, 0, 12.5)),
        JobEvent(1, checkpoint=CHECKPOINT),
        JobEvent(
            1,
            notes=(
                TimelineEntry("job.preemption_simulated", rank=1, message="a"),
                TimelineEntry("node.gone", reason=Reason.PREEMPTED),
            ),
        ),
    ],
    ids=lambda job_event: type(job_event.event).__name__,
)
def test_encode__round_trip(job_event: JobEvent) -> None:
    body = encode(job_event)
    assert body is not None
    decoded = decode(PeerMessage(5, 1, body))
    assert decoded.message_id == 5
    for name in ("job_id", "event", "checkpoint", "notes"):
        assert getattr(decoded, name) == getattr(job_event, name)


def test_encode__local_events_are_not_sent() -> None:
    assert encode(JobEvent(1)) is None
    assert encode(JobEvent(1, events.MachinesDescribed(0, 1, {}))) is None
    assert encode(JobEvent(1, events.NodeDisconnected(0, 1, 0))) is None


def test_outbox__events_reach_the_owner_once(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    for phase in (NodePhase.BOOTED, NodePhase.READY, NodePhase.RUNNING):
        other.receive(JobEvent(job, events.NodeReported(0, 1, 0, phase)))
    other.receive(
        JobEvent(job, checkpoint=CheckpointReport((job, 0, 1), 0, 1, TimelineEntry("checkpoint.saved", 0, 1, 0)))
    )
    assert count_messages(world) == 4
    assert other.owner_reads() == 4
    assert world.job(job)["status"] == "RUNNING"
    assert world.kinds(job).count("checkpoint.saved") == 1
    assert count_messages(world) == 0
    assert other.owner_reads() == 0


def test_message__is_recorded_once_if_it_is_read_twice(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    other.receive(JobEvent(job, notes=(TimelineEntry("job.preemption_simulated"),)))
    with world.database.connect() as conn:
        (message,) = peer_messages.pending(conn, "one")
    repeated, done = decode(message).with_future()
    world.post(decode(message))
    world.post(repeated)
    assert done.done()
    assert world.kinds(job).count("job.preemption_simulated") == 1


def test_message__checkpoint_overtaken_by_a_later_one_is_recorded_once(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    world.run(job)
    first, later = (
        JobEvent(
            job,
            checkpoint=CheckpointReport(
                (job, 0, 1), 0, seq, TimelineEntry("checkpoint.saved", 0, 1, 0, data={"step": seq, "seq": seq})
            ),
        )
        for seq in (1, 2)
    )
    other.receive(first)
    world.post(later)
    assert other.owner_reads() == 1
    world.post(replace(first, done=Future()))
    world.post(replace(later, done=Future()))
    assert world.kinds(job).count("checkpoint.saved") == 2


def test_message__waits_until_its_job_is_adopted(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    other.receive(JobEvent(job, events.CancelRequested(0)))
    world.inbox.owned.clear()  # claimed, but not adopted yet
    assert other.owner_reads() == 1
    assert count_messages(world) == 1
    with world.database.connect() as conn:
        world.inbox.adopt(job_claims.claims_of(conn, "one"))
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
        {"notes": [{"kind": "a.newer_kind", "reason": None}]},
    ],
)
def test_inbox__leaves_undecodable_messages_for_newer_daemons(
    world: World, other: OtherDaemon, body: dict[str, Any]
) -> None:
    job = world.submit()
    with world.database.begin() as conn:
        peer_messages.enqueue(conn, job, body, world.clock.now())
    other.receive(JobEvent(job, notes=(TimelineEntry("job.preemption_simulated"),)))
    assert other.owner_reads() == 1
    assert world.kinds(job).count("job.preemption_simulated") == 1, "later messages are read"
    assert other.owner_reads() == 0
    assert count_messages(world) == 1, "a newer daemon may own the job next"


def test_messages__for_finalized_jobs_are_deleted(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    early = JobEvent(job, events.PreemptionNotice(0, 1, 0, 1.0))
    other.receive(early)
    world.deliver(job, events.CancelRequested(0))
    world.pass_time(30)
    other.receive(JobEvent(job, events.PreemptionNotice(0, 1, 0, 2.0)))
    other.receive(JobEvent(job + 1, events.PreemptionNotice(0, 1, 0, 2.0)))
    assert count_messages(world) == 1, "only the message from before the end"
    with world.database.begin() as conn:
        assert peer_messages.delete_for_finalized_jobs(conn) == 1


def test_event__for_a_job_claimed_by_another_daemon_is_forwarded(world: World, other: OtherDaemon) -> None:
    job = world.submit()
    with world.database.begin() as conn:
        assert job_claims.claim(conn, "other", world.clock.now(), limit=10, take_all=True)
    world.forward = other.outbox.forward
    done = world.inbox.submit(JobEvent(job, events.CancelRequested(0)))
    world.settle()
    done.result(scaled(30))
    assert world.inbox.view(job) is None
    with world.database.connect() as conn:
        assert len(peer_messages.pending(conn, "other")) == 1


def test_outbox__batches_keep_their_order(world: World, other: OtherDaemon) -> None:
    ids = [world.submit() for _ in range(3)]
    job_events = [
        JobEvent(id, notes=(TimelineEntry("task.waiting", data={"number": n}),)) for n in range(120) for id in ids
    ]
    done = [other.controller.inbox.submit(job_event) for job_event in job_events]
    world.forward = other.outbox.forward
    other.controller.settle()
    assert all(one.result(scaled(30)) is None for one in done)
    while count_messages(world):
        assert other.owner_reads() > 0
    for id in ids:
        with world.database.connect() as conn:
            lines = [line["data"]["number"] for line in queries.timeline(conn, id) if "number" in line["data"]]
        assert lines == list(range(120))


class PickyDatabase:
    """A database that refuses every transaction with a poisoned message in it, as PostgreSQL refuses NaN in JSON."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._enqueue_each = peer_messages.enqueue_each
        self.refused: list[int] = []  # the sizes of the refused batches
        self.outages = 0  # how many of the next transactions find the database unavailable
        monkeypatch.setattr(peer_messages, "enqueue_each", self.enqueue_each)

    def enqueue_each(self, conn: Any, messages: Any, now: float) -> None:
        if self.outages > 0:
            self.outages -= 1
            raise OperationalError("INSERT", {}, Exception("the connection broke"))
        if "poison" in json.dumps(messages):
            self.refused.append(len(messages))
            raise DataError("INSERT", {}, Exception("invalid input syntax for type json"))
        self._enqueue_each(conn, messages, now)


def test_outbox__sets_a_refused_message_aside(
    world: World, other: OtherDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [world.submit() for _ in range(3)]
    database = PickyDatabase(monkeypatch)
    database.outages = 2
    poison = TimelineEntry("node.gone", message="poison")
    entries = [TimelineEntry("node.gone"), poison, TimelineEntry("node.gone")]
    sent = [JobEvent(id, notes=(entry,)).with_future() for id, entry in zip(ids, entries, strict=True)]
    other.outbox._waiting.extend((job_event, encode(job_event)) for job_event, _ in sent[:-1])
    with capture_logs() as lines:
        other.outbox.forward(sent[-1][0])  # its thread stores all three
        errors = [done.exception(scaled(30)) for _, done in sent]
    assert [type(error) for error in errors] == [type(None), EventSetAside, type(None)]
    assert database.refused == [3, 1], "together, then one by one"
    (line,) = [line for line in lines if line["event"] == "peer_message.set_aside"]
    assert line["job"] == ids[1]
    assert "poison" in line["message"], "the log has the content"
    assert other.owner_reads() == 3
    assert [world.kinds(id).count("node.gone") for id in ids] == [1, 0, 1]
    assert world.kinds(ids[1]).count("event.set_aside") == 1


def test_outbox__survives_a_message_that_postgresql_cannot_store(world: World, other: OtherDaemon) -> None:
    """On SQLite, JSON may contain NaN."""
    ids = [world.submit() for _ in range(2)]
    bad = JobEvent(ids[0], events.PreemptionNotice(0, 1, 0, float("nan")))
    worse = JobEvent(ids[0], notes=(TimelineEntry("node.gone", data={"x": object()}),))
    good = JobEvent(ids[1], notes=(TimelineEntry("node.gone"),))
    sent = [job_event.with_future() for job_event in (bad, worse, good)]
    for job_event, _ in sent:
        other.outbox.forward(job_event)
    assert sent[-1][1].exception(scaled(30)) is None
    other.owner_reads()
    assert world.kinds(ids[1]).count("node.gone") == 1
    assert isinstance(sent[1][1].exception(scaled(30)), EventSetAside)


def test_inbox__reads_a_lower_id_that_is_committed_later(world: World) -> None:
    """Ids are assigned before the commit, so a higher one may be seen first."""
    job = world.submit()
    body = encode(JobEvent(job, notes=(TimelineEntry("task.waiting"),)))
    now = [0.0]
    posted: list[JobEvent] = []
    inbox = InboxReader(world.database, "one", posted.append, lambda: now[0])
    rows = [{"id": number, "job_id": job, "at": 0.0, "body": body} for number in (2000, 1990, 100)]
    for number, row in enumerate(rows, 1):
        with world.database.begin() as conn:
            conn.execute(insert(PeerMessages).values(**row))
        submitted = inbox.poll()
        assert submitted == (number < 3), "the last id is too low for a poll of the newest messages"
    now[0] = 2.0
    assert inbox.poll() == 1
    assert [job_event.message_id for job_event in posted] == [2000, 1990, 100]


def test_send_to_owners__each_owner_reads_its_messages_once(world: World) -> None:
    """No daemon reads the messages of jobs that have ended."""
    ids = [world.submit() for _ in range(4)]
    world.settle()
    world.deliver(ids[0], events.CancelRequested(0))
    world.pass_time(10)
    assert world.view(ids[0]).is_finalized
    with world.database.begin() as conn:
        send_to_owners(conn, ids, events.CancelRequested(0), world.clock.now())
    world.restart("two")
    inbox = InboxReader(world.database, "two", world.inbox.submit)
    assert inbox.poll() == 3
    assert inbox.poll() == 0, "the messages are in progress"
    world.pass_time(10)
    assert all(world.view(id).is_finalized for id in ids)
    assert [world.kinds(id).count("job.cancel") for id in ids] == [1] * 4
    assert InboxReader(world.database, "two", world.inbox.submit).poll() == 0
