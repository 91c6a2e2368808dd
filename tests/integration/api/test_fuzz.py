"""Schema-based fuzzing: every route of the OpenAPI document, on a real daemon over real HTTP, with a token and without.

What is answered must be what the document says: its statuses, media types and schemas; never a 5xx, never nothing.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from perdure.controller.api.app import create_app
from perdure.controller.services import Services
from perdure.controller.settings import Settings

TIMEOUT_S = 30.0
# It would end the daemon under test: `test_hostile` sends it what it must survive.
STOP = "POST /api/v1/controller/stop"
# What a good task is, is more than a JSON schema says: bodies that fit it are refused with 400, as they should be.
NOT_ASKED = [positive_data_acceptance]


@schemathesis.serializer("application/gzip")
def _as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def operations() -> dict[str, Any]:
    """Every operation of the document, by its label such as `GET /healthz`."""
    load_all_checks()
    nobody = SimpleNamespace(is_user=lambda _token: False)
    services = cast(Services, SimpleNamespace(settings=Settings(Path("nowhere")), keyring=nobody))
    document = schemathesis.openapi.from_dict(create_app(services).openapi())
    return {operation.ok().label: operation.ok() for operation in document.get_all_operations()}


OPERATIONS = operations()


def each_case(operation: Any, count: int, check: Any) -> None:
    """Call `check` with `count` cases of the operation, some as the document says and some not."""
    phases = (Phase.explicit, Phase.generate)
    asked = settings(max_examples=count, phases=phases, deadline=None, suppress_health_check=list(HealthCheck))
    asked(given(operation.as_strategy())(check))()


def send(case: Any, daemon: Any, session: requests.Session) -> None:
    if "follow" in (case.query or {}):
        case.query["follow"] = "0"  # a follower of what never ends would never end, and no job here is ever launched
    headers = {"Authorization": f"Bearer {daemon.token}"}
    case.call_and_validate(
        base_url=daemon.url, session=session, headers=headers, timeout=TIMEOUT_S, excluded_checks=NOT_ASKED
    )


@pytest.fixture(scope="module", autouse=True)
def job(daemon: Any) -> int:
    """A job whose launches are refused, so that answers have something in them. Its name is asked for, too."""
    body = {"name": "known", "tasks": [{"run": "true", "name": "first"}, {"run": "true", "envs": {"A": "1"}}]}
    headers = {"Authorization": f"Bearer {daemon.token}"}
    answer = requests.post(f"{daemon.url}/api/v1/jobs", json=body, headers=headers, timeout=TIMEOUT_S)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["job_id"])


@pytest.mark.parametrize("path", ["jobs/{job_id}", "jobs/{job_id}/logs", "jobs", "controller", "clouds"])
def test_what_there_is_looks_as_the_document_says(daemon: Any, job: int, path: str) -> None:
    operation = OPERATIONS[f"GET /api/v1/{path}"]
    case = operation.Case(path_parameters={"job_id": job} if "job_id" in path else {})
    with requests.Session() as session:
        send(case, daemon, session)


@pytest.mark.parametrize("ids", ["1", "1,2, 3", "9223372036854775807"])
@pytest.mark.parametrize("name", ["known", "\ud800", "\0", "a" * 100_000])
def test_filters_that_a_schema_would_seldom_draw(daemon: Any, ids: str, name: str) -> None:
    case = OPERATIONS["POST /api/v1/jobs/cancel"].Case(body={"name": name}, media_type="application/json")
    with requests.Session() as session:
        send(case, daemon, session)
        send(OPERATIONS["GET /api/v1/jobs"].Case(query={"ids": ids}), daemon, session)


def unharmed(daemon: Any) -> None:
    assert requests.get(f"{daemon.url}/healthz", timeout=TIMEOUT_S).json() == {"status": "ok"}
    assert daemon.complaints() == []


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - {STOP}))
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_user(daemon: Any, label: str, count: int) -> None:
    with requests.Session() as session:
        each_case(OPERATIONS[label], count, lambda case: send(case, daemon, session))
    unharmed(daemon)


@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - {"GET /healthz"}))
def test_nobody_is_told_who_may_before_anything_else(daemon: Any, label: str) -> None:
    def check(case: Any) -> None:
        response = case.call(base_url=daemon.url, timeout=TIMEOUT_S)
        assert response.status_code in (401, 405), response.text

    each_case(OPERATIONS[label], 3, check)
    unharmed(daemon)
