"""Authentication and the gate: every route with every kind of token, on the real application over a real store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from perdure.controller.api import auth as perdure_auth
from perdure.controller.api.app import application, create_app
from perdure.controller.api.auth import NodeIdentity, identify_owned
from perdure.controller.api.context import ApiContext
from perdure.controller.api.websocket_endpoints import CHANNEL, NODE_STREAMS, USER_STREAMS
from perdure.controller.daemon import Daemon
from perdure.controller.reconcile.loop_watchdog import Watchdog
from perdure.controller.reconcile.timer_queue import TimerQueue
from perdure.controller.runtime import endpoint_file
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security import keyring as perdure_keyring
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store.records.jobs import Attempt, Task, insert_batch
from perdure.recovery.statuses import NodePhase
from unit.controller.api.route_table import CALLERS, TABLE
from unit.controller.world import World

UPLOADED = b"the upload of the task of job 1"
AN_HOUR_S = 3600.0  # what docs/concepts/security.md promises, whatever the code says
DIGEST = hashlib.sha256(UPLOADED).hexdigest()
OFFER = {
    "cloud": "local", "region": "r", "zone": "z", "instance_type": "local-2", "market": "spot", "price_per_hour": 1.0,
    "on_demand_price_per_hour": 2.0, "vcpus": 2, "memory_gib": 8, "accelerators": None,
}  # fmt: skip


@dataclass(frozen=True)
class Deployment:
    client: TestClient
    daemon: Daemon
    clock: ManualClock
    tokens: dict[str, str | None]

    def status(self, method: str, path: str, caller: str, **more: Any) -> int:
        token = self.tokens[caller]
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        artifact = next(iter(self.daemon.api_context.node_specs.artifacts.values()))
        digest = artifact if "artifacts" in path else DIGEST
        job = 404 if "preempt" in path else 1
        url = path.replace("{digest}", digest).replace("{job_id}", str(job))
        if path.endswith("/events"):
            url += "?timeout_s=0"
        if method == "WEBSOCKET":
            return self._upgrade(url, headers)
        url = url.replace("{job_id:int}", "1").replace("{sweep_id:int}", "1")
        bodies: dict[str, Any] = {
            "/api/v1/uploads/{digest}": {"content": UPLOADED},
            "/api/v1/session": {"json": {"code": "x"}},
            "/agent/v1/home": {"json": {"problem": ""}},
            "/api/v1/session/codes/owner": {"json": {"code": "x"}},
            "/api/v1/session/command-line": {"json": {"challenge": "0" * 64}},
            "/api/v1/session/command-line/token": {"json": {"code": "x", "secret": "y"}},
        }
        is_empty = "cancel" in path or "preempt" in path or method == "PATCH"
        body = bodies.get(path, {"json": {} if is_empty else {"tasks": []}})
        response = self.client.request(
            method, url, headers=headers, **(body if method in ("PUT", "POST", "PATCH") else {})
        )
        if "is older than a minute" in response.text:  # an address may fail ten times in a minute
            self.client.app._app.state.rate_limits.forgive_sign_in("testclient")  # type: ignore[attr-defined]
        return response.status_code

    def _upgrade(self, url: str, headers: dict[str, str]) -> int:
        try:
            with self.client.websocket_connect(f"ws://127.0.0.1{url}", headers=headers):
                return 101
        except WebSocketDenialResponse as denied:
            return denied.status_code


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    clock = ManualClock()
    home = tmp_path_factory.mktemp("home")
    daemon = Daemon(Settings(home), clock)
    keys: dict[str, AttemptKey] = {"node": (1, 0, 1), "gone": (1, 0, 2), "expired": (1, 0, 3), "other": (2, 0, 1)}
    gone_at = {"gone": clock.now() - AN_HOUR_S + 1, "expired": clock.now() - AN_HOUR_S}
    with daemon.database.begin() as conn:
        for job in (1, 2):
            columns = {"name": "j", "submitted_at": clock.now(), "user": "", "priority": 0, "num_tasks": 1}
            assert insert_batch(conn, columns) == [job]
            spec: dict[str, Any] = {
                "setup": None, "run": None, "envs": {}, "gpus_per_node": 0, "uploads": [], "mounts": [], "buckets": [],
                "workdir": {"upload": DIGEST} if job == 1 else None,
            }  # fmt: skip
            row = {"job_id": job, "index": 0, "task_id": f"t{job}", "status": "RUNNING", "config": {}, "spec": spec}
            stands = {
                "requirements": [],
                "recovery": {},
                "state": "ACTIVE",
                "reason": "STARTED",
                "message": "",
                "name": "t",
            }
            conn.execute(insert(Task).values(**row, **stands))
        for caller, key in keys.items():
            named = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
            state = {"state": "GONE" if caller in gone_at else "RUNNING", "gone_at": gone_at.get(caller)}
            conn.execute(insert(Attempt).values(**named, **state, offer=OFFER, requested_at=clock.now()))
    (home / "uploads" / DIGEST).write_bytes(UPLOADED)
    keyring = daemon.api_context.keyring
    attempt_tokens = {caller: keyring.attempt_token(key) for caller, key in keys.items()}
    tokens = {**attempt_tokens, "nobody": None, "wrong": "wrong", "user": keyring.user_token}
    yield Deployment(TestClient(application(daemon.api_context), base_url="http://127.0.0.1"), daemon, clock, tokens)
    daemon.socket.close()
    daemon.close()


def routes(deployment: Deployment) -> set[tuple[str, str]]:
    """Every (method, path) that the application serves."""
    # These are served before routing.
    statuses = {("WEBSOCKET", path) for path in (CHANNEL, USER_STREAMS, NODE_STREAMS + "{stream_id}")}
    for route in all_routes(deployment.daemon.api_context):
        assert isinstance(route, Route), f"{route} is served, too"
        methods = route.methods or set()
        # Starlette serves HEAD wherever it serves GET, by the same function.
        statuses |= {(method, route.path) for method in methods - ({"HEAD"} if "GET" in methods else set())}
    return statuses


def all_routes(context: ApiContext) -> Iterator[Any]:
    """The routes of the application. It includes most of them when they are requested, or documented."""
    app = create_app(context)
    app.openapi()
    yield from flat_routes(app.routes)


def flat_routes(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    """The routes, also those of included routers."""
    for route in routes:
        inner: Any = getattr(
            route, "original_router", route
        )  # newer versions of FastAPI keep included routers as they are
        if getattr(inner, "routes", None):
            yield from flat_routes(inner.routes)
        else:
            yield route


def test_routes__are_all_in_the_table(deployment: Deployment) -> None:
    assert routes(deployment) == set(TABLE), "a new route needs a row in this table"


@pytest.mark.parametrize("method_and_path", TABLE, ids=" ".join)
def test_route__accepts_only_its_callers(deployment: Deployment, method_and_path: tuple[str, str]) -> None:
    statuses = tuple(deployment.status(*method_and_path, caller) for caller in CALLERS)
    assert dict(zip(CALLERS, statuses, strict=True)) == dict(zip(CALLERS, TABLE[method_and_path], strict=True))


def test_boot_token__gives_access_to_the_agent_alone(deployment: Deployment) -> None:
    """Whoever may look at a cloud account may read it. (Trading it is tested in test_boot_tokens.)"""
    deployment.tokens["boot"] = deployment.daemon.api_context.keyring.boot_token((1, 0, 1))
    for (method, path), statuses in TABLE.items():
        expected = statuses[0] if statuses[0] != 401 else 401
        if path == "/agent/v1/artifacts/{digest}":
            expected = 200
        elif path == "/agent/v1/token":
            continue
        assert (path, deployment.status(method, path, "boot")) == (path, expected)


@pytest.mark.parametrize("rank", ["-1", "1", "x", "", "٣", "9" * 5000])
def test_attempt_token__is_valid_for_ranks_of_its_attempt_only(deployment: Deployment, rank: str) -> None:
    headers = {"Authorization": f"Bearer {deployment.tokens['node']}", "Perdure-Rank": rank.encode()}
    assert deployment.client.get("/agent/v1/spec", headers=headers).status_code == 401
    with (
        pytest.raises(WebSocketDenialResponse),
        deployment.client.websocket_connect("ws://127.0.0.1/agent/v1/channel", headers=headers),
    ):
        pass


def test_attempt_token__expires_with_its_attempt(deployment: Deployment) -> None:
    where = (Attempt.c.job_id == 2, Attempt.c.generation == 1)
    assert deployment.status("GET", "/agent/v1/spec", "other") == 200
    with deployment.daemon.database.begin() as conn:
        conn.execute(update(Attempt).where(*where).values(state="GONE", gone_at=deployment.clock.now()))
    assert deployment.status("GET", "/agent/v1/spec", "other") == 401
    with deployment.daemon.database.begin() as conn:
        conn.execute(update(Attempt).where(*where).values(state="RUNNING", gone_at=None))


def test_identify_owned__knows_live_nodes_of_its_own_jobs_only(deployment: Deployment, tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path / 'world.db'}")
    _, ended, live = world.submit(nodes=2), world.submit(), world.submit(nodes=2)
    world.run(ended)
    world.report(ended, NodePhase.ENDED, exit_code=0)
    context = replace(deployment.daemon.api_context, inbox=world.inbox)

    def identify(key: AttemptKey, rank: str, token: str = "") -> NodeIdentity | None:
        return identify_owned(context, token or context.keyring.attempt_token(key), rank)

    assert identify((live, 0, 1), "1") == NodeIdentity(((live, 0, 1), 1), is_live=True)
    assert identify((live, 0, 1), "2") is None, "it has two nodes"
    assert identify((live, 1, 1), "0") is None
    assert identify((live, 0, 2), "0") is None
    assert identify((ended, 0, 1), "1") is None, "the job before it has two nodes, and this one has one"
    world.pass_time(60)
    assert identify((ended, 0, 1), "0") is None
    assert identify((live, 0, 1), "0", Keyring(b"?" * 32, "").attempt_token((live, 0, 1))) is None
    world.database.dispose()


@pytest.mark.parametrize("value", ["Basic {}", "{}", "bearer", "Bearer", "Bearer {} x", "Token {}"])
def test_user_token__is_accepted_as_bearer_only(deployment: Deployment, value: str) -> None:
    headers = {"Authorization": value.format(deployment.tokens["user"])}
    assert deployment.client.get("/api/v1/jobs", headers=headers).status_code == 401


@pytest.mark.parametrize("place", ["query", "cookie"])
def test_user_token__is_accepted_in_its_header_only(deployment: Deployment, place: str) -> None:
    token = deployment.tokens["user"]
    query = f"?token={token}&access_token={token}" if place == "query" else ""
    headers = {"Cookie": f"token={token}; Authorization=Bearer {token}"} if place == "cookie" else {}
    assert deployment.client.get(f"/api/v1/jobs{query}", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:80", 200), ("10.0.0.5", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("127.0.0.1@evil.example", 421), ("[evil]", 421),
    ],
)  # fmt: skip
def test_gate__rejects_rebound_host_names(deployment: Deployment, host: str, status: int) -> None:
    response = deployment.client.get("/openapi.json", headers={"Host": host})
    assert response.status_code == status
    if status != 200:
        assert response.json()["error"]["where"] == "Host"
    assert deployment.client.get("/healthz", headers={"Host": host}).status_code == 200, (
        "load balancers use arbitrary names"
    )


def test_healthz__fails_without_a_lease(deployment: Deployment) -> None:
    without_lease = replace(deployment.daemon.api_context, has_lease=lambda: False)
    response = TestClient(create_app(without_lease), base_url="http://127.0.0.1").get("/healthz")
    assert response.status_code == 503
    assert deployment.tokens["user"] not in response.text


def test_healthz__fails_while_the_controller_does_not_keep_up(deployment: Deployment) -> None:
    context = deployment.daemon.api_context
    queue: TimerQueue[str, str] = TimerQueue(deployment.clock, 1.0)
    behind = replace(context, watchdog=Watchdog(queue, deployment.clock))
    queue.schedule(deployment.clock.now() - 61, "timer")
    client = TestClient(create_app(behind), base_url="http://127.0.0.1")
    health = client.get("/healthz")
    assert (health.status_code, "a timer has been due for 61 s" in health.text) == (503, True)
    headers = {"Authorization": f"Bearer {deployment.tokens['user']}"}
    assert client.get("/api/v1/controller", headers=headers).json()["overdue"] == "a timer has been due for 61 s"
    assert deployment.client.get("/api/v1/controller", headers=headers).json()["overdue"] is None


def test_gate__allows_no_other_origin(deployment: Deployment) -> None:
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = deployment.client.options("/api/v1/jobs", headers=preflight)
    assert response.status_code == 405
    for one in (response, deployment.client.get("/healthz", headers=preflight)):
        assert not [name for name in one.headers if name.lower().startswith("access-control")]


def test_secret_files__are_readable_by_their_owner_only(deployment: Deployment) -> None:
    home: Path = deployment.daemon.settings.home
    endpoint_file.publish(home, "http://127.0.0.1:1", None, home)
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
def test_launch__rejects_uploads_that_are_not_stored(deployment: Deployment, task: dict[str, Any], digest: str) -> None:
    body = json.loads(json.dumps({"tasks": [task]}).replace("DIGEST", digest))
    headers = {"Authorization": f"Bearer {deployment.tokens['user']}"}
    response = deployment.client.post("/api/v1/jobs", json=body, headers=headers)
    assert response.status_code == 400
    assert "upload" in response.json()["error"]["message"]


COMPARED = re.compile(r"\b(token|signature|credentials)\)? (==|!=) | (==|!=) \(?\w*(token|signature)\b")


def test_tokens__are_never_compared_with_an_operator() -> None:
    """A comparison that ends early reveals by its time how much was right. (Digests of files are no secrets.)"""
    keyring, auth = (Path(module.__file__ or "").read_text() for module in (perdure_keyring, perdure_auth))
    assert keyring.count("hmac.compare_digest(") == 3
    assert not COMPARED.search(keyring)
    assert not COMPARED.search(auth)
    assert COMPARED.search("if token == other")


def test_artifacts__are_the_only_files_of_their_route(deployment: Deployment) -> None:
    deployment.status("PUT", "/api/v1/uploads/{digest}", "user")
    headers = {"Authorization": f"Bearer {deployment.tokens['other']}"}
    for digest in deployment.daemon.api_context.node_specs.artifacts.values():
        assert deployment.client.head(f"/agent/v1/artifacts/{digest}", headers=headers).status_code != 404
    assert deployment.daemon.api_context.blobs.has(DIGEST)
    for caller in ("node", "other"):
        headers = {"Authorization": f"Bearer {deployment.tokens[caller]}"}
        assert deployment.client.get(f"/agent/v1/artifacts/{DIGEST}", headers=headers).status_code == 404
