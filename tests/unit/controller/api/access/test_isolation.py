"""Nobody sees, changes or enters what is another user's: every route of the application is tried."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, insert

from perdure.controller.api.access.permissions import declaration
from perdure.controller.api.dashboard.pages import PATHS
from perdure.controller.store.access.roles import PERMISSIONS, AccessRight, Role
from perdure.controller.store.records.jobs import Attempt, Job
from unit.controller.api.access.conftest import (
    ALICES,
    BOBS,
    CLUSTER,
    CLUSTER_ID,
    DIGEST,
    HOST,
    MISSING,
    OFFER,
    PAUSED,
    SERVICE_ID,
    SERVICE_TASK,
    UPLOADED,
    USERS,
    Installation,
)
from unit.controller.api.route_table import TABLE
from unit.controller.api.test_auth import all_routes

# Routes whose path names something, with a body that would change it. A new one needs a row, here or in `SHARED`.
BODIES: dict[tuple[str, str], Any] = {
    ("GET", "/jobs/{job_id}"): None,
    ("GET", "/jobs/{job_id}/logs"): None,
    ("GET", "/jobs/{job_id}/logs/lines"): None,
    ("GET", "/jobs/{job_id}/logs/summary"): None,
    ("GET", "/jobs/{job_id}/logs/search"): None,
    ("GET", "/jobs/{job_id}/recent"): None,
    ("GET", "/jobs/{job_id}/timeline"): None,
    ("GET", "/jobs/{job_id}/spec"): None,
    ("GET", "/jobs/{job_id}/usage"): None,
    ("GET", "/jobs/{job_id}/metrics"): None,
    ("POST", "/jobs/{job_id}/preempt"): {},
    ("GET", "/nodes/{name}"): None,
    ("GET", "/clusters/{name}/endpoints"): None,
    ("GET", "/clusters/{name}/jobs"): None,
    ("POST", "/clusters/{name}/jobs"): {"task": {"run": "true"}, "key": "k"},
    ("POST", "/clusters/{name}/cancel"): {"all": True},
    ("POST", "/clusters/{name}/stop"): {},
    ("POST", "/clusters/{name}/start"): {},
    ("POST", "/clusters/{name}/down"): {},
    ("POST", "/clusters/{name}/autostop"): {"idle_s": 1.0, "down": True},
    ("GET", "/cluster-ids/{cluster_id}"): None,
    ("GET", "/services/{name}"): None,
    ("GET", "/service-ids/{service_id}"): None,
    ("GET", "/services/{name}/spec"): None,
    ("GET", "/services/{name}/token"): None,
    ("GET", "/services/{name}/timeline"): None,
    ("GET", "/services/{name}/proxy-log"): None,
    ("POST", "/services/{name}/update"): {"task": SERVICE_TASK, "key": "k"},
    ("POST", "/services/{name}/down"): {},
    ("POST", "/services/{name}/replicas/{number}/terminate"): {},
    ("DELETE", "/schedules/{name}"): None,
    ("POST", "/schedules/{name}/pause"): {},
    ("POST", "/schedules/{name}/resume"): {},
    ("POST", "/schedules/{name}/run"): {"key": "k"},
    ("GET", "/sweeps/{sweep_id}"): None,
    ("POST", "/sweeps/{sweep_id}/retry"): {"key": "k"},
    ("HEAD", "/uploads/{digest}"): None,
    ("DELETE", "/tokens/{token_id}"): None,
}
# Paths whose objects belong to nobody, or are for administrators or nodes alone; and of which a name that does not
# exist makes something new (`test_services_and_schedules__of_others_have_taken_their_names`).
SHARED = {"/clouds/{name}/findings", "/users/{name}", "/uploads/{digest}", "/schedules/{name}"}
STREAMS = "/api/v1/streams"
WRITING = ("POST", "PUT", "PATCH", "DELETE")


def test_paths_with_names__are_all_tried() -> None:
    named = {(method, path.removeprefix("/api/v1")) for method, path in TABLE if "{" in path and "/api/" in path}
    assert {one for one in named if one[1] not in SHARED or one in BODIES} == set(BODIES)


def names_in(path: str, installation: Installation) -> tuple[str, str]:
    """(the name of alice's, the name of something that does not exist) for the parameter of a path."""
    if "{job_id}" in path:
        return str(ALICES), str(MISSING)
    if "{cluster_id}" in path:
        return str(CLUSTER_ID), str(MISSING)
    if "{digest}" in path:
        return DIGEST, "0" * 64
    if "{token_id}" in path:
        return installation.tokens["alice"].split("_")[1], "AAAAAAAAAA"
    if "{service_id}" in path or "{sweep_id}" in path:
        return str(SERVICE_ID if "{service_id}" in path else ALICES), str(MISSING)
    return (f"job-{ALICES}", f"job-{MISSING}") if path.startswith("/nodes") else (CLUSTER, "other-dev")


@pytest.mark.parametrize("route", BODIES, ids=" ".join)
def test_things_of_others__are_as_things_that_do_not_exist(installation: Installation, route: tuple[str, str]) -> None:
    method, path = route
    answers = []
    for name in names_in(path, installation):
        named = path.replace("{number}", "1").replace(path[path.index("{") : path.index("}") + 1], name)
        response = installation.call("bob", method, named, BODIES[route])
        text = response.text.replace(name, "NAME").replace(name.removeprefix("job-"), "NAME")
        answers.append((response.status_code, text))
    assert answers[0] == answers[1], "the answer shows that it exists"
    assert answers[0][0] == 404
    assert installation.cancelled() == []
    row = installation.call("alice", "GET", f"/cluster-ids/{CLUSTER_ID}").json()
    assert (row["status"] != "DOWN", row["autostop_s"]) == (True, None)
    service = installation.call("alice", "GET", f"/services/{CLUSTER}").json()
    assert (service["endpoint"] is not None, service["version"], service["replicas"][0]["message"]) == (True, 1, "")
    (schedule,) = installation.call("alice", "GET", "/schedules").json()["schedules"]
    assert (schedule["paused"], schedule["last_job_id"]) == (PAUSED, None)


@pytest.mark.parametrize("name", [f"job-{ALICES}", str(ALICES), f"job-{HOST}", CLUSTER, f"{CLUSTER}-worker1"])
@pytest.mark.parametrize("user", ["bob", "oscar", "vera"])
def test_machines_of_others__are_entered_by_administrators_only(
    installation: Installation, name: str, user: str
) -> None:
    response = installation.call(user, "GET", f"/nodes/{name}")
    assert response.status_code == (403 if user == "vera" else 404)
    assert installation.call("alice", "GET", f"/nodes/{name.removesuffix('-worker1')}").status_code == 200
    assert installation.call("anna", "GET", f"/nodes/{name.removesuffix('-worker1')}").status_code == 200


def test_streams__of_others_are_refused(installation: Installation) -> None:
    headers = {"Authorization": f"Bearer {installation.tokens['bob']}"}
    frames = []
    for name in (f"job-{ALICES}", f"job-{MISSING}"):
        with installation.client("bob").websocket_connect(f"ws://127.0.0.1{STREAMS}", headers=headers) as stream:
            stream.send_json({"type": "open", "kind": "exec", "name": name, "argv": ["id"]})
            frame = stream.receive_json()
            frames.append({**frame, "message": frame["message"].replace(name.removeprefix("job-"), "N")})
    assert frames[0] == frames[1]
    assert frames[0]["status"] == 404


@pytest.mark.parametrize(
    "path", sorted({p for m, p in TABLE if m == "GET" and "{" not in p and "/api/" in p and "/oidc" not in p})
)
def test_lists__have_nothing_of_others(installation: Installation, path: str) -> None:
    query = "?timeout_s=0" if path.endswith("/events") else ""
    response = installation.call("bob", "GET", path.removeprefix("/api/v1") + query)
    assert response.status_code in (200, 403)
    assert "alice" not in response.text
    assert "zebra" not in response.text


def test_lists__have_what_is_the_callers(installation: Installation) -> None:
    jobs = {
        user: {job["job_id"] for job in installation.call(user, "GET", "/jobs").json()["jobs"]}
        for user in ("alice", "bob", "vera", "oscar", "root")
    }
    everybody = {ALICES, BOBS}
    assert jobs == {"alice": {ALICES}, "bob": {BOBS}, "vera": everybody, "oscar": everybody, "root": everybody}
    clusters = {user: len(installation.call(user, "GET", "/clusters").json()["clusters"]) for user in USERS}
    assert clusters == {"alice": 1, "bob": 0, "vera": 1, "oscar": 1, "anna": 1}
    queues = {user: len(installation.call(user, "GET", "/cluster-queues").json()["queues"]) for user in USERS}
    assert queues == clusters
    machines = {user: len(installation.call(user, "GET", "/nodes").json()["nodes"]) for user in USERS}
    assert machines == {"alice": 2, "bob": 1, "vera": 3, "oscar": 3, "anna": 3}
    spent = {user: installation.call(user, "GET", "/savings").json()["total"]["cost_usd"] for user in USERS}
    assert spent == pytest.approx({"alice": 2.0, "bob": 1.0, "vera": 3.0, "oscar": 3.0, "anna": 3.0})
    sent = {user: len(installation.call(user, "GET", "/notifications").json()) for user in USERS}
    assert sent == {"alice": 2, "bob": 1, "vera": 3, "oscar": 3, "anna": 3}


def test_queue__of_a_user(installation: Installation) -> None:
    def listed(caller: str, **query: Any) -> set[int]:
        return {job["job_id"] for job in installation.call(caller, "GET", "/jobs", params=query).json()["jobs"]}

    assert listed("vera", user="alice") == {ALICES}
    assert listed("bob", user="alice") == set()
    assert listed("bob", ids=f"{ALICES},{BOBS}") == {BOBS}
    assert listed("bob", name="z*") == listed("bob", name="zebra") == set()
    assert listed("bob", status="RUNNING") == listed("bob", skip_finished=True) == {BOBS}
    counts = {user: installation.call(user, "GET", "/jobs").json()["counts"] for user in ("bob", "vera")}
    assert counts == {"bob": {"RUNNING": 1}, "vera": {"RUNNING": 2}}


@pytest.mark.parametrize("body", [{"all": True}, {"ids": [BOBS, ALICES, HOST]}, {"name": "bobs"}, {"name": "zebra"}])
def test_cancel__touches_only_the_callers_jobs(installation: Installation, body: dict[str, Any]) -> None:
    installation.forget_cancels()
    result = installation.call("bob", "POST", "/jobs/cancel", body).json()
    own = [] if body.get("name") == "zebra" else [BOBS]
    assert (result["cancelled"], installation.cancelled()) == (own, own)
    if "ids" in body:
        assert result["unknown"] == [ALICES, HOST]
    installation.forget_cancels()


def test_cancel__leaves_the_kept_machines_of_others(installation: Installation) -> None:
    """A job that has failed and whose machines are kept has ended, but is cancelled to let them go."""
    kept = 70
    rows = {"user": "alice", "name": "kept", "submitted_at": 0.0, "finalized": False}
    key = {"job_id": kept, "task_index": 0, "generation": 1}
    with installation.daemon.database.begin() as conn:
        conn.execute(insert(Job).values(id=kept, **rows))
        conn.execute(insert(Attempt).values(**key, state="STOPPED", offer=OFFER, requested_at=0.0))
    cancelled = {}
    for user in ("bob", "alice"):
        installation.forget_cancels()
        installation.call(user, "POST", "/jobs/cancel", {"all": True})
        cancelled[user] = kept in installation.cancelled()
    installation.forget_cancels()
    with installation.daemon.database.begin() as conn:
        conn.execute(delete(Attempt).where(Attempt.c.job_id == kept))
        conn.execute(delete(Job).where(Job.c.id == kept))
    assert cancelled == {"bob": False, "alice": True}


def test_cancel__of_an_operator_touches_all(installation: Installation) -> None:
    installation.forget_cancels()
    result = installation.call("oscar", "POST", "/jobs/cancel", {"all": True}).json()
    assert set(result["cancelled"]) == {BOBS, ALICES}
    installation.forget_cancels()


def test_submission__takes_its_user_from_the_token(installation: Installation) -> None:
    task = {"run": "true", "resources": {"infra": "local", "cpus": 1}}
    for caller, user in (("bob", "bob"), ("root", "admin"), ("anna", "anna")):
        made = installation.call(caller, "POST", "/jobs", {"tasks": [task], "user": "alice", "key": f"of-{caller}"})
        assert made.status_code == 201, made.text
        seen = installation.call("root", "GET", f"/jobs/{made.json()['job_id']}").json()
        assert seen["user"] == user
    again = installation.call("alice", "POST", "/jobs", {"tasks": [task], "user": "", "key": "of-bob"}).json()
    assert installation.call("root", "GET", f"/jobs/{again['job_id']}").json()["user"] == "alice", "a key of one's own"
    refused = installation.call("vera", "POST", "/jobs", {"tasks": [task], "user": "alice"})
    assert refused.status_code == 403


def test_upload__of_others_needs_its_content(installation: Installation) -> None:
    task = {"run": "true", "workdir": {"upload": DIGEST}, "resources": {"infra": "local", "cpus": 1}}
    refused = installation.call("bob", "POST", "/jobs", {"tasks": [task]})
    assert (refused.status_code, "there is no upload" in refused.text) == (400, True)
    assert installation.call("bob", "PUT", f"/uploads/{DIGEST}", content=b"").status_code == 400
    assert installation.call("bob", "HEAD", f"/uploads/{DIGEST}").status_code == 404
    assert installation.call("alice", "HEAD", f"/uploads/{DIGEST}").status_code == 200
    assert installation.call("bob", "PUT", f"/uploads/{DIGEST}", content=UPLOADED).status_code == 201
    assert installation.call("bob", "POST", "/jobs", {"tasks": [task]}).status_code == 201


def test_cluster__name_of_another_user_is_taken(installation: Installation) -> None:
    body = {"name": CLUSTER, "task": {"run": "true"}, "key": "mine"}
    refused = installation.call("bob", "POST", "/clusters", body)
    assert (refused.status_code, refused.json()["error"]["fix"]) == (409, "choose another name")


def test_job__on_the_cluster_of_another_user_is_its_owners(installation: Installation) -> None:
    """Only operators can queue one there; the owner pays for it, so the owner sees it."""
    body = {"task": {"name": "helped", "run": "true"}, "user": "bob", "key": "helped"}
    queued = installation.call("oscar", "POST", f"/clusters/{CLUSTER}/jobs", body)
    assert queued.status_code == 201, queued.text
    job_id = queued.json()["job_id"]
    assert installation.call("alice", "GET", f"/jobs/{job_id}").json()["user"] == "alice"
    assert installation.call("bob", "GET", f"/jobs/{job_id}").status_code == 404
    (entry,) = [one for one in installation.audit(action="job.submit") if one["target"] == f"job {job_id}"]
    assert (entry["user"], entry["detail"]["user"]) == ("oscar", "alice")


# --- roles ------------------------------------------------------------------------------------------------------------


def test_every_route__declares_who_may_call_it(installation: Installation) -> None:
    declared = {
        (route.path, *sorted(route.methods)): declaration(route.dependant)
        for route in all_routes(installation.daemon.api_context)
        if hasattr(route, "dependant")
    }
    assert None not in declared.values()
    public = {path for (path, *_), who in declared.items() if who == "anybody"}
    oidc = {f"/api/v1/session/oidc{path}" for path in ("", "/name", "/callback")}
    sign_in = {f"/api/v1/session{path}" for path in ("", "/codes/owner", "/command-line/token")}
    assert public == {*PATHS, "/assets/{name}", "/healthz", *sign_in, *oidc}
    assert declared["/api/v1/session", "DELETE"] == "permission: READ"


@pytest.mark.parametrize("user", ["vera", "bob", "oscar", "anna"])
def test_role__is_refused_what_it_may_not_do(installation: Installation, user: str) -> None:
    held = PERMISSIONS[Role(USERS[user])]
    tried = 0
    for route in all_routes(installation.daemon.api_context):
        needed = declaration(route.dependant) if hasattr(route, "dependant") else None
        if needed is None or not needed.startswith("permission: "):
            continue
        if AccessRight[needed.removeprefix("permission: ")] in held:
            continue
        for method in sorted(route.methods or ()):
            path = route.path.replace("{", "").replace("}", "").replace("job_id", "1")
            response = installation.client(user).request(method, path, **({"json": {}} if method in WRITING else {}))
            assert response.status_code in (403, 400 if "digest" in path else 403), f"{method} {path}"
            tried += 1
    assert (tried > 0) == (user != "anna")


def test_token__may_do_less_than_its_user(installation: Installation) -> None:
    installation.tokens["looker"] = installation.new_token("alice", role="viewer")["token"]
    assert [job["job_id"] for job in installation.call("looker", "GET", "/jobs").json()["jobs"]][-1:] == [ALICES]
    assert {job["user"] for job in installation.call("looker", "GET", "/jobs").json()["jobs"]} == {"alice"}
    assert installation.call("looker", "GET", f"/jobs/{BOBS}").status_code == 404, "a viewer's token of a user"
    assert installation.call("looker", "POST", "/jobs/cancel", {"all": True}).status_code == 403
    installation.tokens["grand"] = installation.new_token("bob", role="admin")["token"]
    assert installation.call("grand", "GET", "/users").status_code == 403
