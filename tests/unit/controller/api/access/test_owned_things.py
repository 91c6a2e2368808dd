"""Services, schedules and sweeps of named users: whose they are, and what their jobs may do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import update

from perdure.controller.runtime.config.notify_config import NotifyConfig
from perdure.controller.store.records.jobs import Task
from perdure.controller.store.services import records
from unit.controller.api.access.conftest import ALICES, CLUSTER, DIGEST, SERVICE_TASK, USERS, Installation

TASK: dict[str, Any] = {"run": "true", "resources": {"infra": "local", "cpus": 1}}
CRON = "0 0 1 1 *"
CALLBACK = {"event_callback": "id"}
UPLOAD = {"workdir": {"upload": DIGEST}}


def save(installation: Installation, user: str, name: str, **task: Any) -> Any:
    return installation.call(user, "PUT", f"/schedules/{name}", {"cron": CRON, "tasks": [{**TASK, **task}]})


def up(installation: Installation, user: str, name: str, key: str = "", **task: Any) -> Any:
    body = {"name": name, "task": {**SERVICE_TASK, **task}, "key": key or f"up-{name}"}
    return installation.call(user, "POST", "/services", body)


def user_of(installation: Installation, job_id: int) -> str:
    return str(installation.call("root", "GET", f"/jobs/{job_id}").json()["user"])


@contextmanager
def no_callbacks(installation: Installation) -> Iterator[None]:
    """A configuration with which a task's callback is accepted, and has no effect."""
    compiler = installation.daemon.api_context.compiler
    before = compiler.notify
    object.__setattr__(compiler, "notify", NotifyConfig(runs_callbacks=False))
    try:
        yield
    finally:
        object.__setattr__(compiler, "notify", before)


def test_names__of_services_and_schedules_of_others_are_taken(installation: Installation) -> None:
    for refused in (up(installation, "bob", CLUSTER), save(installation, "bob", CLUSTER)):
        assert (refused.status_code, refused.json()["error"]["fix"]) == (409, "choose another name")
    assert "another user" not in up(installation, "alice", CLUSTER, "again").text
    assert installation.call("bob", "GET", "/schedules").json() == {"schedules": []}


def test_schedule__that_an_operator_replaces_stays_its_owners(installation: Installation) -> None:
    saved = save(installation, "oscar", CLUSTER).json()["schedule"]
    assert (saved["user"], saved["paused"]) == ("alice", False)
    assert save(installation, "oscar", "oscars").json()["schedule"]["user"] == "oscar"
    assert installation.call("oscar", "DELETE", "/schedules/oscars").status_code == 200


def test_lists__are_those_that_the_caller_may_see(installation: Installation) -> None:
    names = {"alice": 1, "bob": 0, "vera": 1, "oscar": 1, "anna": 1}
    assert {user: len(installation.call(user, "GET", "/services").json()["services"]) for user in USERS} == names
    assert {user: len(installation.call(user, "GET", "/schedules").json()["schedules"]) for user in USERS} == names
    found = {user: installation.call(user, "GET", f"/sweeps/{ALICES}").status_code for user in USERS}
    assert found == {"alice": 200, "bob": 404, "vera": 200, "oscar": 200, "anna": 200}


def test_token_of_a_service__is_for_those_who_may_change_it(installation: Installation) -> None:
    """Whoever has it can use the service, so viewers do not get it. The log has no secrets."""
    installation.tokens["looker"] = installation.new_token("alice", role="viewer")["token"]
    users = ("alice", "looker", "bob", "vera", "oscar", "anna")
    statuses = {user: installation.call(user, "GET", f"/services/{CLUSTER}/token").status_code for user in users}
    assert statuses == {"alice": 200, "looker": 403, "bob": 404, "vera": 403, "oscar": 200, "anna": 200}
    logs = {user: installation.call(user, "GET", f"/services/{CLUSTER}/proxy-log").status_code for user in users}
    assert logs == {"alice": 200, "looker": 200, "bob": 404, "vera": 200, "oscar": 200, "anna": 200}


def test_secrets_of_a_service__are_kept_for_their_user_and_for_administrators(installation: Installation) -> None:
    """The program of an update can read them, and operators may not enter the machines of others either."""
    assert up(installation, "alice", "sealed", secrets={"KEY": "canary"}).status_code == 201
    body = {"task": SERVICE_TASK, "kept_secrets": ["KEY"]}
    statuses = {
        user: installation.call(user, "POST", "/services/sealed/update", {**body, "key": f"kept-{user}"}).status_code
        for user in ("oscar", "bob", "alice", "anna", "root")
    }
    assert statuses == {"oscar": 403, "bob": 404, "alice": 201, "anna": 201, "root": 201}
    assert "canary" not in installation.call("vera", "GET", "/services/sealed/spec").text
    assert installation.call("alice", "POST", "/services/sealed/down").status_code == 200


def test_uploads__of_others_are_as_uploads_that_do_not_exist(installation: Installation) -> None:
    update_ = {"task": {**SERVICE_TASK, **UPLOAD}, "key": "with-the-upload"}
    assert up(installation, "bob", "bobs").status_code == 201
    for refused in (
        up(installation, "bob", "uploaded", **UPLOAD),
        save(installation, "bob", "uploaded", **UPLOAD),
        installation.call("bob", "POST", "/services/bobs/update", update_),
    ):
        assert (refused.status_code, f"there is no upload {DIGEST[:12]}" in refused.text) == (400, True)
    assert up(installation, "alice", "uploaded", **UPLOAD).status_code == 201
    assert save(installation, "alice", "uploaded", **UPLOAD).status_code == 200
    assert installation.call("alice", "POST", "/schedules/uploaded/run", {"key": "k"}).status_code == 200
    for name in ("bobs", "uploaded"):
        assert installation.call("root", "POST", f"/services/{name}/down").status_code == 200
    assert installation.call("alice", "DELETE", "/schedules/uploaded").status_code == 200


@pytest.mark.parametrize(("user", "is_allowed"), [("bob", False), ("oscar", False), ("anna", True), ("root", True)])
def test_callbacks__are_for_administrators(installation: Installation, user: str, *, is_allowed: bool) -> None:
    name = f"calls-{user}"
    assert up(installation, user, name, **CALLBACK).status_code == (201 if is_allowed else 403)
    assert save(installation, user, name, **CALLBACK).status_code == (200 if is_allowed else 403)
    if is_allowed:
        assert installation.call(user, "POST", f"/schedules/{name}/run", {"key": "k"}).status_code == 200
        assert installation.call(user, "POST", f"/services/{name}/down").status_code == 200
        assert installation.call(user, "DELETE", f"/schedules/{name}").status_code == 200


def test_callbacks__of_a_user_do_not_run_once_callbacks_are_allowed(installation: Installation) -> None:
    """The launch comes later than the check, when nobody's token says who requested it."""
    with no_callbacks(installation):
        assert up(installation, "bob", "later", **CALLBACK).status_code == 201
        assert save(installation, "bob", "later", **CALLBACK).status_code == 200
    refused = installation.call("root", "POST", "/schedules/later/run", {"key": "k"})
    assert (refused.status_code, "event_callback" in refused.text) == (403, True)
    assert launched(installation, "later")[1] == "FAILED_PROVISION"
    assert installation.call("bob", "POST", "/services/later/down").status_code == 200
    assert installation.call("bob", "DELETE", "/schedules/later").status_code == 200


def launched(installation: Installation, name: str) -> tuple[int | None, str | None]:
    """The job of the first replica of a service, and why it was given up."""
    services = installation.daemon.api_context.services
    assert services is not None
    for _ in range(2):
        services.watch.evaluate()
    with installation.daemon.database.connect() as conn:
        service = records.find(conn, name)
        assert service is not None
        row = records.replicas(conn, [service.id], ended=True)[service.id][0].row
    return row.job_id, row.retired_as


def test_replicas__are_jobs_of_the_services_user(installation: Installation) -> None:
    assert up(installation, "bob", "of-bob").status_code == 201
    job_id, _ = launched(installation, "of-bob")
    assert job_id is not None
    assert user_of(installation, job_id) == "bob"
    assert installation.call("alice", "GET", f"/jobs/{job_id}").status_code == 404
    again = {"task": SERVICE_TASK, "key": "by-oscar"}
    assert installation.call("oscar", "POST", "/services/of-bob/update", again).json()["version"] == 2
    assert installation.call("root", "GET", "/services/of-bob").json()["user"] == "bob"
    assert installation.call("bob", "POST", "/services/of-bob/down").status_code == 200
    assert installation.call("bob", "GET", "/services/of-bob").json()["user"] == "bob"
    assert installation.call("alice", "GET", "/services/of-bob").status_code == 404


def test_name_of_a_service_that_is_down__shows_nothing_to_its_next_owner(installation: Installation) -> None:
    ids = []
    for user in ("alice", "bob"):
        ids.append(up(installation, user, "again", f"{user}-again").json()["service_id"])
        if user == "alice":
            assert installation.call("alice", "POST", "/services/again/down").status_code == 200
    seen = {user: installation.call(user, "GET", "/services/again").json()["service_id"] for user in ("alice", "bob")}
    assert seen == {"alice": ids[0], "bob": ids[1]}
    assert installation.call("alice", "POST", "/services/again/down").json()["service_id"] == ids[0]
    assert installation.call("bob", "GET", "/services/again").json()["endpoint"] is not None, "not ended by alice"
    assert installation.call("bob", "POST", "/services/again/down").status_code == 200


def test_runs_of_a_schedule__are_jobs_of_its_user_with_their_limits(installation: Installation) -> None:
    installation.call("root", "POST", "/users", {"name": "dora", "max_jobs": 1})
    installation.tokens["dora"] = installation.new_token("dora")["token"]
    every_minute = {"cron": "* * * * *", "tasks": [TASK]}
    assert installation.call("dora", "PUT", "/schedules/doras", every_minute).status_code == 200
    run = [installation.call("oscar", "POST", "/schedules/doras/run", {"key": key}) for key in ("a", "a", "b")]
    assert [one.status_code for one in run] == [200, 200, 429]
    assert run[0].json() == run[1].json()
    job_id = run[0].json()["job_id"]
    assert user_of(installation, job_id) == "dora"
    (entry,) = [one for one in installation.audit(action="job.submit") if one["target"] == f"job {job_id}"]
    assert (entry["user"], entry["detail"]["user"]) == ("oscar", "dora")
    installation.call("root", "PATCH", "/users/dora", {"max_jobs": 9, "disabled": True})
    schedules = installation.daemon.api_context.schedules
    assert schedules is not None
    installation.clock.advance(61.0)
    schedules.tick()
    rows = installation.call("root", "GET", "/schedules").json()["schedules"]
    results = {row["name"]: row["last_result"] for row in rows}
    assert results["doras"] == "skipped: the user dora is disabled"
    assert installation.call("root", "DELETE", "/schedules/doras").status_code == 200


def test_budget__that_is_spent_refuses_services(installation: Installation) -> None:
    installation.call("root", "POST", "/users", {"name": "lena", "budget_usd": 0})
    installation.tokens["lena"] = installation.new_token("lena")["token"]
    assert up(installation, "lena", "lenas").status_code == 201
    installation.daemon._budgets.tick()
    assert up(installation, "lena", "lenas-other").status_code == 429
    assert installation.call("lena", "POST", "/services/lenas/down").status_code == 200


def test_retry_of_a_sweep__launches_jobs_of_its_user(installation: Installation) -> None:
    launched_ = {"tasks": [{**TASK, "sweep": {"A": ["1", "2"]}}], "key": "sweep"}
    ids = installation.call("bob", "POST", "/jobs", launched_).json()["job_ids"]
    with installation.daemon.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id.in_(ids)).values(status="FAILED"))
    path = f"/sweeps/{ids[0]}/retry"
    assert installation.call("alice", "POST", path, {"key": "k"}).status_code == 404
    assert installation.call("vera", "POST", path, {"key": "k"}).status_code == 403
    own = installation.call("bob", "POST", path, {"key": "k"})
    assert own.status_code == 200, own.text
    again = installation.call("oscar", "GET", f"/sweeps/{ids[0]}").json()
    assert {job["job_id"] for job in again["jobs"]} == set(own.json()["job_ids"])
    with installation.daemon.database.begin() as conn:
        conn.execute(update(Task).where(Task.c.job_id.in_(own.json()["job_ids"])).values(status="FAILED"))
    others = installation.call("oscar", "POST", path, {"key": "k"})
    assert others.status_code == 200, others.text
    assert {user_of(installation, job_id) for job_id in [*own.json()["job_ids"], *others.json()["job_ids"]]} == {"bob"}
    assert not {*others.json()["job_ids"]} & {*own.json()["job_ids"]}, "a key of one's own"


def test_keys__of_services_are_their_users_and_have_no_control_characters(installation: Installation) -> None:
    made = up(installation, "bob", "same-key", "of-the-service")  # with which alice has started hers
    assert (made.status_code, made.json().get("name")) == (201, "same-key")
    assert up(installation, "bob", "same-key", "of-the-service").json()["service_id"] == made.json()["service_id"]
    assert up(installation, "bob", "other", "a\x1fb").status_code == 400
    body = {"task": SERVICE_TASK, "key": "a\x1fb"}
    assert installation.call("bob", "POST", "/services/same-key/update", body).status_code == 400
    assert installation.call("bob", "POST", "/services/same-key/down").status_code == 200


def test_audit__has_what_was_done_and_what_was_refused(installation: Installation) -> None:
    assert up(installation, "alice", "audited").status_code == 201
    assert save(installation, "alice", "audited").status_code == 200
    deeds = {
        ("POST", "services", "update"): {"task": SERVICE_TASK, "key": "audited-2"},
        ("GET", "services", "token"): None,
        ("POST", "schedules", "pause"): {},
        ("POST", "schedules", "resume"): {},
        ("POST", "schedules", "run"): {"key": "audited"},
        ("POST", "services", "down"): {},
    }
    for (method, kind, verb), body in deeds.items():
        for user, status in (("bob", 404), ("alice", 201 if verb == "update" else 200)):
            path = f"/{kind}/audited/{verb}"
            assert installation.call(user, method, path, body).status_code == status, f"{user} {path}"
    assert installation.call("alice", "DELETE", "/schedules/audited").status_code == 200
    expected = {f"{kind.removesuffix('s')}.{verb}" for _, kind, verb in deeds}
    done = {(one["action"], one["user"]) for one in installation.audit() if one["target"].endswith(" audited")}
    assert {action for action, user in done if user == "alice"} == expected | {
        "service.up",
        "schedule.save",
        "schedule.remove",
    }
    refused = [one for one in installation.audit(outcome="denied", user="bob") if one["target"].endswith(" audited")]
    assert {one["action"] for one in refused} == expected
