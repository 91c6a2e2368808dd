"""Schema-based fuzzing: every route of the OpenAPI document, on a real daemon over real HTTP, with a token and without.

Responses must match the document: its statuses, media types and schemas. There is never a 5xx, and always a response.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case, CheckFunction, SerializationContext
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from integration.api.daemons import Daemon
from perdure.controller.api.app import create_app
from perdure.controller.api.context import ApiContext
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from support.helpers.timing import scaled

pytestmark = pytest.mark.api

Operation = APIOperation[Any, Any, Any, Any]
AnyCase = Case[Any]
Check = Callable[[AnyCase], None]

TIMEOUT_S = 30.0
# It would end the daemon under test.
STOP = "POST /api/v1/controller/stop"
# Tasks have more rules than a JSON schema can express: bodies that match the schema may be rejected with 400.
EXCLUDED_CHECKS: list[CheckFunction] = [positive_data_acceptance]


@schemathesis.serializer("application/gzip")
def _as_it_is(_: SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def operations() -> dict[str, Operation]:
    """Every operation of the document, by its label such as `GET /healthz`."""
    load_all_checks()
    keyring = SimpleNamespace(is_user_token=lambda _token: False)
    settings, metrics = Settings(Path("nowhere")), DaemonMetrics()
    of_app = {"settings": settings, "keyring": keyring, "metrics": metrics, "oidc": None, "database": None}
    context = cast(ApiContext, SimpleNamespace(**of_app))
    document = schemathesis.openapi.from_dict(create_app(context).openapi())
    return {operation.ok().label: operation.ok() for operation in document.get_all_operations()}


OPERATIONS = operations()
SIGN_IN = ("POST /api/v1/session", "POST /api/v1/session/codes/owner", "POST /api/v1/session/command-line/token")
# What a browser asks before it has signed in.
FOR_ANYBODY = {"GET /healthz", *(f"GET /api/v1/session/oidc{rest}" for rest in ("", "/callback", "/name"))}


def check_cases(operation: Operation, count: int, check: Check) -> None:
    """Call `check` with `count` cases of the operation, valid and invalid ones."""
    phases = (Phase.explicit, Phase.generate)
    run = settings(max_examples=count, phases=phases, deadline=None, suppress_health_check=list(HealthCheck))
    run(given(operation.as_strategy())(check))()


def send(case: AnyCase, daemon: Daemon, session: requests.Session) -> None:
    if "follow" in (case.query or {}):
        case.query["follow"] = "0"  # the job never ends, so following its log would not, either
    if case.operation.path.endswith("/events"):
        case.query = {**(case.query or {}), "timeout_s": "0"}
    headers = {"Authorization": f"Bearer {daemon.token}"}
    case.call_and_validate(
        base_url=daemon.url,
        session=session,
        headers=headers,
        timeout=scaled(TIMEOUT_S),
        excluded_checks=EXCLUDED_CHECKS,
    )


@pytest.fixture(scope="module", autouse=True)
def job(daemon: Daemon) -> int:
    """A job that never gets a machine, so that responses are not empty. Filters name it, too."""
    body = {"name": "known", "tasks": [{"run": "true", "name": "first"}, {"run": "true", "envs": {"A": "1"}}]}
    headers = {"Authorization": f"Bearer {daemon.token}"}
    response = requests.post(f"{daemon.url}/api/v1/jobs", json=body, headers=headers, timeout=scaled(TIMEOUT_S))
    assert response.status_code == 201, response.text
    return int(response.json()["job_id"])


@pytest.mark.parametrize("path", ["jobs/{job_id}", "jobs/{job_id}/logs", "jobs", "controller", "clouds"])
def test_response__matches_the_openapi_document(daemon: Daemon, job: int, path: str) -> None:
    operation = OPERATIONS[f"GET /api/v1/{path}"]
    case = operation.Case(path_parameters={"job_id": job} if "job_id" in path else {})
    with requests.Session() as session:
        send(case, daemon, session)


@pytest.mark.parametrize("ids", ["1", "1,2, 3", "9223372036854775807"])
@pytest.mark.parametrize("name", ["known", "\ud800", "\0", "a" * 100_000])
def test_filters__accept_unusual_values(daemon: Daemon, ids: str, name: str) -> None:
    case = OPERATIONS["POST /api/v1/jobs/cancel"].Case(body={"name": name}, media_type="application/json")
    with requests.Session() as session:
        send(case, daemon, session)
        send(OPERATIONS["GET /api/v1/jobs"].Case(query={"ids": ids}), daemon, session)


def unharmed(daemon: Daemon) -> None:
    assert requests.get(f"{daemon.url}/healthz", timeout=scaled(TIMEOUT_S)).json() == {"status": "ok"}
    assert daemon.errors() == []


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - {STOP}))
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_operation__as_a_user(daemon: Daemon, label: str, count: int) -> None:
    with requests.Session() as session:
        check_cases(OPERATIONS[label], count, lambda case: send(case, daemon, session))
    unharmed(daemon)


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - FOR_ANYBODY))
def test_operation__without_a_token_is_unauthorized(daemon: Daemon, label: str) -> None:
    expected = (401, 405, 429) if label in SIGN_IN else (401, 405)  # an address may fail ten times a minute

    def check(case: AnyCase) -> None:
        response = case.call(base_url=daemon.url, timeout=scaled(TIMEOUT_S))
        assert response.status_code in expected, response.text

    check_cases(OPERATIONS[label], 3, check)
    unharmed(daemon)
