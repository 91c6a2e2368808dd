"""Who may call what: every route against every kind of token, on the real application over a real store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from starlette.routing import Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from perdure.controller import keyring as perdure_keyring
from perdure.controller.api import auth as perdure_auth
from perdure.controller.api.agents import CHANNEL
from perdure.controller.api.app import application, create_app
from perdure.controller.api.auth import AFTERLIFE_S
from perdure.controller.clock import ManualClock
from perdure.controller.daemon import Daemon
from perdure.controller.keyring import AttemptKey
from perdure.controller.settings import Settings
from perdure.controller.store.jobs import Attempt, Task, reserve

UPLOADED = b"what the task of job 1 brings"
DIGEST = hashlib.sha256(UPLOADED).hexdigest()
OFFER = {
    "cloud": "local", "region": "r", "zone": "z", "instance_type": "local-2", "market": "spot", "price_per_hour": 1.0,
    "on_demand_price_per_hour": 2.0, "vcpus": 2, "memory_gib": 8, "accelerators": None,
}  # fmt: skip

# Who calls: nobody; a wrong token; a user; a node of a living attempt; one of another job's attempt; one of an attempt
# that is gone; one of an attempt that is gone for long.
CALLERS = ("nobody", "wrong", "user", "node", "other", "gone", "expired")
ANYBODY = (200,) * 7
USERS = (401, 401, 200, 401, 401, 401, 401)
NODES = (401, 401, 401, 200, 200, 401, 401)
# What a user is answered for what is not there or can not be done: who may is settled before.
NOT_THERE = (401, 401, 404, 401, 401, 401, 401)
REFUSED = (401, 401, 400, 401, 401, 401, 401)
NOT_NOW = (401, 401, 409, 401, 401, 401, 401)

TABLE: dict[tuple[str, str], tuple[int, ...]] = {
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/api/v1/controller"): USERS,
    ("POST", "/api/v1/controller/stop"): USERS,
    ("PUT", "/api/v1/controller/software"): NOT_NOW,
    ("GET", "/api/v1/controller/logs"): NOT_THERE,
    ("GET", "/api/v1/clouds"): USERS,
    ("GET", "/api/v1/clouds/{name}/findings"): NOT_THERE,
    ("GET", "/api/v1/gpus"): USERS,
    ("POST", "/api/v1/plan"): REFUSED,
    ("POST", "/api/v1/jobs"): REFUSED,
    ("GET", "/api/v1/jobs"): USERS,
    ("GET", "/api/v1/jobs/{job_id}"): USERS,
    ("POST", "/api/v1/jobs/cancel"): REFUSED,
    ("POST", "/api/v1/jobs/{job_id}/preempt"): NOT_THERE,
    ("GET", "/api/v1/jobs/{job_id}/logs"): USERS,
    ("HEAD", "/api/v1/uploads/{digest}"): USERS,
    ("PUT", "/api/v1/uploads/{digest}"): USERS,
    ("GET", "/agent/v1/spec"): NODES,
    # A node gets the files that its own task names, and no others.
    ("GET", "/agent/v1/uploads/{digest}"): (401, 401, 401, 200, 404, 401, 401),
    ("GET", "/agent/v1/artifacts/{digest}"): NODES,
    # A node that was written off is told to stop; an hour after its end its token is worth nothing.
    ("WEBSOCKET", "/agent/v1/channel"): (401, 401, 401, 101, 101, 101, 401),
}


@dataclass(frozen=True)
class Surroundings:
    client: TestClient
    daemon: Daemon
    clock: ManualClock
    tokens: dict[str, str | None]

    def status(self, method: str, path: str, caller: str, **more: Any) -> int:
        token = self.tokens[caller]
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        artifact = next(iter(self.daemon.services.specs.artifacts.values()))
        digest = artifact if "artifacts" in path else DIGEST
        job = 404 if "preempt" in path else 1
        url = path.replace("{digest}", digest).replace("{job_id}", str(job))
        if method == "WEBSOCKET":
            return self._upgrade(url, headers)
        bodies: dict[str, Any] = {"/api/v1/uploads/{digest}": {"content": UPLOADED}}
        body = bodies.get(path, {"json": {"tasks": []} if "cancel" not in path and "preempt" not in path else {}})
        return self.client.request(
            method, url, headers=headers, **(body if method in ("PUT", "POST") else {})
        ).status_code

    def _upgrade(self, url: str, headers: dict[str, str]) -> int:
        try:
            with self.client.websocket_connect(f"ws://127.0.0.1{url}", headers=headers):
                return 101
        except WebSocketDenialResponse as denied:
            return denied.status_code


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    clock = ManualClock()
    home = tmp_path_factory.mktemp("home")
    daemon = Daemon(Settings(home), clock)
    keys: dict[str, AttemptKey] = {"node": (1, 0, 1), "gone": (1, 0, 2), "expired": (1, 0, 3), "other": (2, 0, 1)}
    gone_at = {"gone": clock.now() - AFTERLIFE_S + 1, "expired": clock.now() - AFTERLIFE_S}
    with daemon.database.begin() as conn:
        for job in (1, 2):
            columns = {"name": "j", "submitted_at": clock.now(), "user": "", "priority": 0, "num_tasks": 1}
            assert reserve(conn, columns) == [job]
            spec = {
                "setup": None, "run": None, "envs": {}, "gpus_per_node": 0, "uploads": [], "mounts": [], "buckets": [],
                "workdir": {"upload": DIGEST} if job == 1 else None,
            }  # fmt: skip
            row = {"job_id": job, "index": 0, "task_id": f"t{job}", "status": "RUNNING", "config": {}, "spec": spec}
            stands = {"needs": [], "recovery": {}, "state": "ACTIVE", "reason": "STARTED", "message": "", "name": "t"}
            conn.execute(insert(Task).values(**row, **stands))
        for who, key in keys.items():
            named = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
            state = {"state": "GONE" if who in gone_at else "RUNNING", "gone_at": gone_at.get(who)}
            conn.execute(insert(Attempt).values(**named, **state, offer=OFFER, requested_at=clock.now()))
    (home / "uploads" / DIGEST).write_bytes(UPLOADED)
    keyring = daemon.services.keyring
    tokens = {who: keyring.attempt_token(key) for who, key in keys.items()}
    given = {**tokens, "nobody": None, "wrong": "wrong", "user": keyring.user_token}
    yield Surroundings(TestClient(application(daemon.services), base_url="http://127.0.0.1"), daemon, clock, given)
    daemon.socket.close()
    daemon.close()


def routes(around: Surroundings) -> set[tuple[str, str]]:
    """Every (method, path) that the application answers."""
    found = {("WEBSOCKET", CHANNEL)}  # the one that is answered before any route
    for route in _flat(create_app(around.daemon.services).routes):
        assert isinstance(route, Route), f"{route} answers too"
        methods = route.methods or set()
        # Starlette answers HEAD wherever it answers GET, by the same function.
        found |= {(method, route.path) for method in methods - ({"HEAD"} if "GET" in methods else set())}
    return found


def _flat(routes: Any) -> Iterator[Any]:
    for route in routes:
        inner = getattr(route, "original_router", route)  # newer versions of FastAPI keep included routers as they are
        if getattr(inner, "routes", None):
            yield from _flat(inner.routes)
        else:
            yield route


def test_every_route_says_who_may(around: Surroundings) -> None:
    assert routes(around) == set(TABLE), "a new route needs a row in this table"


@pytest.mark.parametrize("method_and_path", TABLE, ids=" ".join)
def test_who_may(around: Surroundings, method_and_path: tuple[str, str]) -> None:
    found = tuple(around.status(*method_and_path, caller) for caller in CALLERS)
    assert dict(zip(CALLERS, found, strict=True)) == dict(zip(CALLERS, TABLE[method_and_path], strict=True))


@pytest.mark.parametrize("rank", ["-1", "1", "x", "", "٣", "9" * 5000])
def test_a_token_is_worth_the_ranks_of_its_attempt(around: Surroundings, rank: str) -> None:
    headers = {"Authorization": f"Bearer {around.tokens['node']}", "Perdure-Rank": rank.encode()}
    assert around.client.get("/agent/v1/spec", headers=headers).status_code == 401
    with (
        pytest.raises(WebSocketDenialResponse),
        around.client.websocket_connect("ws://127.0.0.1/agent/v1/channel", headers=headers),
    ):
        pass


def test_a_living_attempt_that_ends_takes_its_token_with_it(around: Surroundings) -> None:
    where = (Attempt.c.job_id == 2, Attempt.c.generation == 1)
    assert around.status("GET", "/agent/v1/spec", "other") == 200
    with around.daemon.database.begin() as conn:
        conn.execute(update(Attempt).where(*where).values(state="GONE", gone_at=around.clock.now()))
    assert around.status("GET", "/agent/v1/spec", "other") == 401
    with around.daemon.database.begin() as conn:
        conn.execute(update(Attempt).where(*where).values(state="RUNNING", gone_at=None))


@pytest.mark.parametrize("value", ["Basic {}", "{}", "bearer", "Bearer", "Bearer {} x", "Token {}"])
def test_tokens_come_as_bearers_alone(around: Surroundings, value: str) -> None:
    headers = {"Authorization": value.format(around.tokens["user"])}
    assert around.client.get("/api/v1/jobs", headers=headers).status_code == 401


@pytest.mark.parametrize("place", ["query", "cookie"])
def test_tokens_come_in_their_header_alone(around: Surroundings, place: str) -> None:
    token = around.tokens["user"]
    query = f"?token={token}&access_token={token}" if place == "query" else ""
    headers = {"Cookie": f"token={token}; Authorization=Bearer {token}"} if place == "cookie" else {}
    assert around.client.get(f"/api/v1/jobs{query}", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:80", 200), ("10.0.0.5", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("127.0.0.1@evil.example", 421), ("[evil]", 421),
    ],
)  # fmt: skip
def test_a_rebound_name_is_turned_away(around: Surroundings, host: str, status: int) -> None:
    answer = around.client.get("/openapi.json", headers={"Host": host})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["where"] == "Host"
    assert around.client.get("/healthz", headers={"Host": host}).status_code == 200, "a balancer asks by any name"


def test_a_controller_without_its_lease_is_not_healthy(around: Surroundings) -> None:
    without = replace(around.daemon.services, has_lease=lambda: False)
    answer = TestClient(create_app(without), base_url="http://127.0.0.1").get("/healthz")
    assert answer.status_code == 503
    assert around.tokens["user"] not in answer.text


def test_no_other_origin_is_let_in(around: Surroundings) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = around.client.options("/api/v1/jobs", headers=asked)
    assert answer.status_code == 405
    for response in (answer, around.client.get("/healthz", headers=asked)):
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_what_is_private_is_its_owners_alone(around: Surroundings) -> None:
    home: Path = around.daemon.settings.home
    around.daemon._publish()
    modes = {name: (home / name).stat().st_mode & 0o777 for name in ("token", "secret.key", "controller.json")}
    assert modes == dict.fromkeys(modes, 0o600)


@pytest.mark.parametrize("digest", ["../secret.key", "x", "0" * 63 + "g", "f" * 64])
@pytest.mark.parametrize(
    "task",
    [
        {"run": "true", "workdir": {"upload": "DIGEST"}},
        {"run": "true", "file_mounts": {"/x": {"upload": "DIGEST"}}},
        {"run": "true", "file_mounts": {"/x": {"name": "a-bucket", "source": {"upload": "DIGEST"}}}},
    ],
)
def test_a_job_names_uploads_that_are_there(around: Surroundings, task: dict[str, Any], digest: str) -> None:
    body = json.loads(json.dumps({"tasks": [task]}).replace("DIGEST", digest))
    headers = {"Authorization": f"Bearer {around.tokens['user']}"}
    answer = around.client.post("/api/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 400
    assert "upload" in answer.json()["error"]["message"]


COMPARED = re.compile(r"\b(token|signature|credentials)\)? (==|!=) | (==|!=) \(?\w*(token|signature)\b")


def test_tokens_are_never_compared_with_an_operator() -> None:
    """Comparisons that end early tell by their time how much was right. (Digests of files are no secrets.)"""
    keyring, auth = (Path(module.__file__ or "").read_text() for module in (perdure_keyring, perdure_auth))
    assert keyring.count("hmac.compare_digest(") == 2
    assert not COMPARED.search(keyring)
    assert not COMPARED.search(auth)
    assert COMPARED.search("if token == other")
