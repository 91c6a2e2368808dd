"""What users are told of services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from perdure.controller.maintenance.notify.messages import single
from perdure.controller.maintenance.serve.timeline import KINDS, ServiceTimeline
from perdure.controller.runtime.config.notify_config import ChannelConfig, NotifyConfig, NotifyRule
from perdure.controller.store.records import notifications
from perdure.controller.store.records.notifications import Notifications
from perdure.controller.store.services import events
from perdure.recovery.market.services.replicas import Replica, ReplicaStatus
from perdure.sdk.notify.events import EVENTS

CHANNELS = {name: ChannelConfig(name, "webhook", "https://example.org") for name in ("ops", "chat")}


def replica(number: int, version: int, *, ready: bool = False) -> Any:
    view = SimpleNamespace(number=number, version=version, is_ready=ready)
    return SimpleNamespace(view=view)


def service(*replicas: Any, version: int = 1, was_ready: bool = False, failures: int = 0) -> Any:
    """As the watch reads it."""
    return SimpleNamespace(
        row=SimpleNamespace(id=1, name="model", user="ada", version=version),
        newest=SimpleNamespace(ready_at=1.0 if was_ready else None),
        replicas=replicas,
        failures=failures,
    )


class Setting:
    def __init__(self, database: Engine, task: dict[str, Any], *rules: NotifyRule) -> None:
        self.database = database
        config = NotifyConfig(channels=CHANNELS, rules=rules)
        self.timeline = ServiceTimeline(config, "c", lambda: None, lambda _version: task)

    def end(self, of: Any, status: ReplicaStatus, number: int = 1, version: int = 1) -> None:
        view = Replica(number, version, is_spot=True, created_at=0.0)
        with self.database.begin() as conn:
            self.timeline.record_end(conn, of, view, status, "why", 0.0)

    def kinds(self) -> list[str]:
        with self.database.connect() as conn:
            return [row.kind for row in events.newest(conn, 1, 100)]

    def queued(self) -> list[tuple[str, str]]:
        with self.database.connect() as conn:
            return [(row.kind, row.channel) for row in conn.execute(select(Notifications).order_by(Notifications.c.id))]


def test_failure__before_any_replica_was_ready_fails_the_service(database: Engine) -> None:
    setting = Setting(database, {"notify": "ops"})
    setting.end(service(replica(1, 1)), ReplicaStatus.FAILED)
    setting.end(service(replica(2, 1), failures=1), ReplicaStatus.FAILED, 2)
    assert setting.kinds() == ["service.replica_failed", "service.failed", "service.replica_failed"]
    assert setting.queued() == [("service.failed", "ops")], "by default, of the service alone"


def test_failure__of_an_update_says_that_the_earlier_version_goes_on(database: Engine) -> None:
    setting = Setting(database, {}, NotifyRule(("service.*",), ("chat",), name="mo*"))
    setting.end(service(replica(1, 1, ready=True), replica(2, 2), version=2), ReplicaStatus.FAILED_PROBING, 2, 2)
    assert setting.queued() == [("service.replica_failed", "chat"), ("service.update_failed", "chat")]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (ReplicaStatus.PREEMPTED, "service.replica_preempted"),
        (ReplicaStatus.TERMINATED, "service.replica_ended"),
        (ReplicaStatus.FAILED_PROVISION, "service.replica_failed"),
    ],
)
def test_end__is_told_by_its_cause(database: Engine, status: ReplicaStatus, kind: str) -> None:
    setting = Setting(database, {"notify": {"to": ["ops"], "when": ["service.*"]}})
    setting.end(service(was_ready=True), status)
    assert setting.kinds() == [kind]
    assert setting.queued() == ([(kind, "ops")] if kind in EVENTS else [])


def test_event__is_queued_once_for_each_channel(database: Engine) -> None:
    setting = Setting(database, {"notify": ["ops"]}, NotifyRule(("service.*",), ("ops", "chat"), user="ada"))
    for _ in range(2):
        setting.end(service(replica(1, 1)), ReplicaStatus.FAILED)
    assert sorted(setting.queued()) == [
        ("service.failed", "chat"),
        ("service.failed", "ops"),
        ("service.replica_failed", "chat"),
        ("service.replica_failed", "ops"),
    ]
    with database.begin() as conn:
        (first, *_) = notifications.claim(conn, "ops", "me", now=1.0, lease_s=9, limit=1, one_per_job=True)
    message = single(first)
    assert message.title == "Service model has a replica that failed"
    assert message.text.endswith("perdure serve logs model --controller")
    assert message.thread == "service-1"


def test_kinds__of_notifications_are_kinds_of_the_timeline() -> None:
    assert {kind for kind in EVENTS if kind.startswith("service.")} < set(KINDS)


def test_timeline__of_a_service_is_bounded(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_KEPT", 3)
    with database.begin() as conn:
        for number in range(5):
            events.add(conn, 1, "service.scaled", float(number))
            events.add(conn, 2, "service.scaled", float(number))
        assert [row.at for row in events.newest(conn, 1, 100)] == [2.0, 3.0, 4.0]
        assert len(events.newest(conn, 2, 100)) == 3
