"""The sender on a real outbox, with channels that do what the test says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine

from perdure.controller.maintenance.notify import sender as sender_module
from perdure.controller.maintenance.notify.channel_protocol import Delivered, Message, NotDelivered
from perdure.controller.maintenance.notify.sender import GIVE_UP_S, LEASE_S, NotificationSender
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.notify_config import CALLBACK, NO_NOTIFICATIONS
from perdure.controller.store.records import notifications
from support.helpers.timing import wait_until

Result = Delivered | NotDelivered


@dataclass
class Channel:
    """Records messages, and answers as `answer` says."""

    answer: Callable[[Message], Result] = lambda _message: Delivered("200")
    messages: list[Message] = field(default_factory=list)

    def deliver(self, message: Message) -> Result:
        self.messages.append(message)
        return self.answer(message)

    @property
    def events(self) -> list[str]:
        bodies = [m.body["data"]["events"] if m.kind == "digest" else [m.body] for m in self.messages]
        return [event["id"] for events in bodies for event in events]


@dataclass
class Site:
    database: Engine
    clock: ManualClock
    channel: Channel
    senders: list[NotificationSender] = field(default_factory=list)

    def sender(self, owner: str = "one", channel: str = "ops") -> NotificationSender:
        channels: dict[str, Any] = {channel: self.channel}
        sender = NotificationSender(NO_NOTIFICATIONS, channels, self.database, self.clock, owner=owner)
        self.senders.append(sender)
        return sender

    def queue(self, *event_ids: str, job: int | None = None, channel: str = "ops") -> None:
        rows = [
            {
                "event_id": event_id,
                "channel": channel,
                "kind": "job.preempted",
                "job_id": job,
                "at": self.clock.now(),
                "body": {"id": event_id, "type": "job.preempted", "data": {"job_id": job, "job_name": "j"}},
            }
            for event_id in event_ids
        ]
        with self.database.begin() as conn:
            notifications.add_all(conn, rows)

    def run(self, sender: NotificationSender, seconds: float, step_s: float = 1.0) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(step_s)
            sender.run_once(wait=True)

    def rows(self) -> list[Any]:
        with self.database.connect() as conn:
            return notifications.latest(conn, 10_000)[::-1]


@pytest.fixture
def site(database: Engine) -> Iterator[Site]:
    site = Site(database, ManualClock(), Channel())
    yield site
    for sender in site.senders:
        sender.stop()


def test_events__are_sent_once_and_marked(site: Site) -> None:
    sender = site.sender()
    site.queue("a", "b")
    site.queue("a")  # it is queued already
    site.run(sender, 10)
    assert site.channel.events == ["a", "b"]
    assert [(row.outcome, row.try_count, row.error) for row in site.rows()] == [("sent", 1, "200")] * 2
    assert [message.id for message in site.channel.messages] == ["a", "b"], "the id of a message is its event's"


def test_storm__becomes_few_messages_that_name_every_event(site: Site) -> None:
    sender = site.sender()
    names = [f"e{number}" for number in range(1000)]
    for start in range(0, 1000, 50):
        site.queue(*names[start : start + 50])
        site.run(sender, 0.5, step_s=0.5)
    site.run(sender, 130)
    assert len(site.channel.messages) <= 3
    assert Counter(site.channel.events) == Counter(names)
    assert "events of Perdure" in site.channel.messages[-1].title


def test_failed_delivery__is_repeated_later_and_later(site: Site) -> None:
    site.channel.answer = lambda _: NotDelivered("HTTP 500")
    sender = site.sender()
    site.queue("a")
    site.run(sender, 4)
    assert len(site.channel.messages) == 1
    site.run(sender, 7)
    assert len(site.channel.messages) == 2, "about five seconds later"
    site.run(sender, 40)
    assert len(site.channel.messages) == 3, "about half a minute later"
    site.channel.answer = lambda _: Delivered()
    site.run(sender, 200, step_s=10)
    (row,) = site.rows()
    assert (row.outcome, row.try_count) == ("sent", 4)
    assert set(site.channel.events) == {"a"}


def test_retry_after__is_obeyed(site: Site) -> None:
    site.channel.answer = lambda _: NotDelivered("HTTP 429", retry_after_s=100.0)
    sender = site.sender()
    site.queue("a")
    site.run(sender, 95)
    assert len(site.channel.messages) == 1
    site.run(sender, 15)
    assert len(site.channel.messages) == 2


def test_event__is_given_up_after_a_day(site: Site) -> None:
    site.channel.answer = lambda _: NotDelivered("HTTP 500")
    sender = site.sender()
    site.queue("a")
    site.run(sender, GIVE_UP_S + 6 * 3600 * 1.3, step_s=600)
    (row,) = site.rows()
    assert (row.outcome, row.error) == ("dead", "HTTP 500")


def test_receiver_that_is_gone__is_not_called_again(site: Site) -> None:
    site.channel.answer = lambda _: NotDelivered("HTTP 410", is_final=True)
    sender = site.sender()
    site.queue("a")
    site.run(sender, 5)
    site.queue("b")
    site.run(sender, 5)
    assert [row.outcome for row in site.rows()] == ["dead", "dead"]
    assert len(site.channel.messages) == 2, "each later event tries once: the receiver may have come back"


def test_events_of_a_job__keep_their_order(site: Site) -> None:
    refused: list[str] = []

    def refuse_first(message: Message) -> Result:
        if message.id == "first" and not refused:
            refused.append(message.id)
            return NotDelivered("HTTP 500")
        return Delivered()

    site.channel.answer = refuse_first
    sender = site.sender()
    site.queue("first", "second", job=7)
    site.run(sender, 3)
    assert site.channel.events == ["first"]
    site.queue("other", job=8)
    site.run(sender, 20)
    assert site.channel.events == ["first", "other", "first", "second"]


def test_digest__keeps_the_order_of_a_job_whose_first_event_waits(site: Site) -> None:
    site.channel.answer = lambda message: Delivered() if message.id != "first" else NotDelivered("HTTP 500")
    sender = site.sender()
    site.queue("first", job=7)
    site.run(sender, 3)
    site.queue("second", "third", job=7)
    site.queue("other", "another", "last", job=8)
    site.run(sender, 3)
    assert site.channel.events == ["first", "other", "another", "last"]
    assert site.channel.messages[-1].kind == "digest"


def test_events_behind_one_that_waits__start_no_quiet_time(site: Site) -> None:
    site.channel.answer = lambda message: Delivered() if message.id != "first" else NotDelivered("HTTP 500", 3600.0)
    sender = site.sender()
    site.queue("first", job=7)
    site.run(sender, 5)
    site.queue("second", "third", "fourth", job=7)
    site.run(sender, 5)
    site.queue("other", job=8)
    site.run(sender, 5)
    assert "other" in site.channel.events, "three events that cannot be sent are no storm"


def test_dead_sender__leaves_a_lease_that_expires(site: Site) -> None:
    site.queue("a")
    site.clock.advance(5)
    with site.database.begin() as conn:
        claimed = notifications.claim(
            conn, "ops", "dead", now=site.clock.now(), lease_s=LEASE_S, limit=5, one_per_job=True
        )
    assert [one.event_id for one in claimed] == ["a"]
    sender = site.sender("two")
    site.run(sender, LEASE_S - 10, step_s=10)
    assert site.channel.events == []
    site.run(sender, 30, step_s=10)
    assert site.channel.events == ["a"]


def test_two_senders__send_each_event_once(site: Site) -> None:
    one, two = site.sender("one"), site.sender("two")
    for number in range(20):
        site.queue(f"e{number}")
        site.clock.advance(3)
        one.run_once(wait=True)
        two.run_once(wait=True)
    site.run(one, 70)
    assert Counter(site.channel.events) == Counter(f"e{number}" for number in range(20))


def test_unknown_channel__may_be_one_of_another_controller_for_a_day(site: Site) -> None:
    sender = site.sender()
    site.queue("a", channel="other")
    site.run(sender, GIVE_UP_S - 10, step_s=3600)
    site.queue("b", channel="other")
    assert [row.outcome for row in site.rows()] == [None, None]
    site.run(sender, 7200, step_s=3600)
    assert [(row.outcome, row.error) for row in site.rows()] == [
        ("dead", "the channel is not configured"),
        (None, None),
    ]


def test_channel_with_a_bug__has_tried_the_event(site: Site) -> None:
    def fail(message: Message) -> Result:
        if message.id == "a":
            raise RuntimeError("a bug")
        return Delivered()

    site.channel.answer = fail
    sender = site.sender()
    site.queue("a", "b")
    site.run(sender, 5)
    assert [(row.outcome, row.try_count) for row in site.rows()] == [(None, 1), ("sent", 1)], "b waits for no lease"
    assert site.rows()[0].error == "a bug in the channel: RuntimeError"
    site.run(sender, GIVE_UP_S + 6 * 3600 * 1.3, step_s=600)
    assert site.rows()[0].outcome == "dead"


def test_old_rows__are_deleted_however_many_there_are(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_DELETED_AT_ONCE", 2)
    sender = site.sender()
    site.queue("a", "b", "c", "d", "e")
    site.run(sender, 5)
    site.clock.advance(31 * 86400)
    sender.run_once(wait=True)
    assert site.rows() == []


def test_callbacks__of_other_jobs_do_not_wait_for_a_slow_one(site: Site) -> None:
    ended = threading.Event()
    site.channel.answer = lambda message: Delivered() if message.id != "slow" or ended.wait(30) else NotDelivered("")
    sender = site.sender(channel=CALLBACK)
    site.queue("slow", "after slow", job=1, channel=CALLBACK)
    for job in range(2, 22):
        site.queue(f"start-{job}", f"end-{job}", job=job, channel=CALLBACK)
    site.clock.advance(1.0)
    sender.run_once()
    others = [name for job in range(2, 22) for name in (f"start-{job}", f"end-{job}")]
    try:
        wait_until(lambda: set(site.channel.events) == {"slow", *others}, "the callbacks of the other jobs", 30)
    finally:
        ended.set()
    wait_until(lambda: "after slow" in site.channel.events, "the next event of the slow job", 30)
    assert len(site.channel.events) == 42
    for job in range(2, 22):
        assert site.channel.events.index(f"start-{job}") < site.channel.events.index(f"end-{job}")
