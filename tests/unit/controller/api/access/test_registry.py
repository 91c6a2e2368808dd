"""Tokens in memory: who is let in, until when, and how soon other controllers follow."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from perdure.controller.api.access import registry as registries
from perdure.controller.api.access.registry import AccessRegistry
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.store.access import audit, users
from perdure.controller.store.access.audit import Actor, AuditFilter
from perdure.controller.store.access.roles import AccessRight, Role
from perdure.controller.store.engine.database import open_database


def add_user(database: Engine, clock: ManualClock, *, days: float | None = 1.0, role: Role = Role.USER) -> str:
    """A user `ada` with a token, which is returned."""
    token, _ = users.new_token()
    now = clock.now()
    with database.begin() as conn:
        users.add(conn, "ada", role, now)
        expires_at = None if days is None else now + days * 86_400
        users.add_token(conn, token, "ada", Role.USER, label="", now=now, expires_at=expires_at)
    return token


def test_token__is_found_with_what_it_allows(database: Engine) -> None:
    clock = ManualClock()
    token = add_user(database, clock)
    registry = AccessRegistry(database, clock)
    grant = registry.find(token)
    assert grant is not None
    assert (grant.user, grant.permissions) == ("ada", AccessRight.READ | AccessRight.RUN)
    wrong = [token[:-1], f"{token}x", token.replace(token[-1], "!"), token[:15] + "A" * 43, "", "pdu_", token.upper()]
    assert [registry.find(one) for one in wrong] == [None] * len(wrong)


def test_token__is_stored_as_a_digest(database: Engine) -> None:
    token = add_user(database, ManualClock())
    with database.connect() as conn:
        stored = str(conn.exec_driver_sql("SELECT * FROM user_token").all())
    secret = token.split("_", 2)[2]
    assert users.digest_of(token) in stored
    assert secret not in stored
    assert users.TOKEN.fullmatch(token)


def test_token__expires(database: Engine) -> None:
    clock = ManualClock()
    token = add_user(database, clock, days=1.0)
    registry = AccessRegistry(database, clock)
    grant = registry.find(token)
    assert grant is not None
    assert grant.is_valid(clock.now() + 86_399)
    assert not grant.is_valid(clock.now() + 86_400)
    assert grant.refusal(clock.now() + 86_400) == "expired"


def test_revoked_token__is_refused_by_another_controller_after_a_refresh(database: Engine, database_url: str) -> None:
    clock = ManualClock()
    token = add_user(database, clock)
    other_database = open_database(database_url)
    here, there = AccessRegistry(database, clock), AccessRegistry(other_database, clock)
    with database.begin() as conn:
        assert users.revoke(conn, token.split("_")[1], clock.now())
        assert not users.revoke(conn, token.split("_")[1], clock.now()), "once"
    here.refresh()
    assert [r.find(token).is_valid(clock.now()) for r in (here, there)] == [False, True]  # type: ignore[union-attr]
    there.tick()
    assert there.find(token).refusal(clock.now()) == "revoked"  # type: ignore[union-attr]
    other_database.dispose()


def test_other_controllers__follow_within_what_is_promised() -> None:
    assert registries.REFRESH_S + 1.0 <= registries.MAX_STALE_S == 5.0, "as docs/concepts/security.md says"


@pytest.mark.parametrize("change", [{"disabled_at": 1.0}, {"role": "viewer"}])
def test_user__is_disabled_or_gets_another_role(database: Engine, change: dict[str, object]) -> None:
    clock = ManualClock()
    token = add_user(database, clock)
    registry = AccessRegistry(database, clock)
    with database.begin() as conn:
        users.change(conn, "ada", **change)
    registry.tick()
    grant = registry.find(token)
    assert grant is not None
    assert grant.is_valid(clock.now()) == ("role" in change)
    assert AccessRight.RUN not in grant.permissions or "disabled_at" in change


def test_registry__reads_again_only_what_has_changed(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(database, ManualClock())
    registry = AccessRegistry(database, ManualClock())
    monkeypatch.setattr(users, "grants", lambda _conn: pytest.fail("nothing has changed"))
    registry.tick()


def test_use__is_stored_once_a_minute(database: Engine) -> None:
    clock = ManualClock()
    token_id = add_user(database, clock).split("_")[1]
    registry = AccessRegistry(database, clock)
    seen = []
    for passed_s in (0.0, 30.0, 31.0):
        clock.advance(passed_s)
        registry.record_use(token_id, clock.now())
        registry.tick()
        with database.connect() as conn:
            seen.append(users.token(conn, token_id).last_used_at)  # type: ignore[union-attr]
    start = clock.now() - 61.0
    assert seen == [start, start, start + 61.0]


def test_denials__are_recorded_and_bounded(database: Engine) -> None:
    clock = ManualClock()
    registry = AccessRegistry(database, clock)
    for number in range(100):
        registry.deny(Actor("", address="10.0.0.1"), "token.refused", f"try {number}", "unknown")
    registry.deny(Actor("ada"), "POST /api/v1/users")
    registry.tick()
    clock.advance(61)
    registry.deny(Actor("", address="10.0.0.1"), "token.refused", "a minute later")
    registry.tick()
    with database.connect() as conn:
        entries = audit.latest(conn, AuditFilter(limit=1000))
    assert len(entries) == 12
    assert {entry.outcome for entry in entries} == {"denied"}
    assert entries[0].target == "a minute later"
