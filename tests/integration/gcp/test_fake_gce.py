"""The fake Compute Engine accepts and returns only what Google's API description contains."""

from __future__ import annotations

from typing import Any

import pytest

from support.fakes.gce import FakeGce, discovery
from support.fakes.gce.discovery import Call, Invalid

pytestmark = pytest.mark.long

INSTANCES = "/compute/v1/projects/p/zones/us-central1-a/instances"


@pytest.mark.parametrize(
    ("http_method", "path", "query", "body", "wrong"),
    [
        ("GET", INSTANCES, {"filtr": "x"}, b"", "unknown parameter 'filtr'"),
        ("GET", INSTANCES, {"maxResults": "501", "orderBy": "x"}, b'{"a": 1}', "takes no body"),
        ("GET", "/compute/v1/projects/p/machines", {}, b"", "none of the API's"),
        ("POST", f"{INSTANCES}/bulkInsert", {}, b'{"cuont": "1"}', "cuont': there is no such field"),
        ("POST", f"{INSTANCES}/bulkInsert", {}, b'{"count": 1}', "1 is no string"),
        ("POST", f"{INSTANCES}/bulkInsert", {}, b'{"count": "one"}', "'one' is no number"),
        (
            "POST",
            f"{INSTANCES}/bulkInsert",
            {},
            b'{"instanceProperties": {"scheduling": {"provisioningModel": "CHEAP"}}}',
            "'CHEAP' is none of",
        ),
        (
            "POST",
            f"{INSTANCES}/bulkInsert",
            {},
            b'{"instanceProperties": {"disks": [{"boot": "yes"}]}}',
            r"disks\[0\].boot': 'yes' is no boolean",
        ),
    ],
)
def test_fake_gce__rejects_unknown_requests(
    http_method: str, path: str, query: dict[str, str], body: bytes, wrong: str
) -> None:
    with pytest.raises(Invalid, match=wrong):
        discovery.read(http_method, path, query, body)


@pytest.mark.parametrize(
    "answer", [{"items": [{"status": "ALIVE"}]}, {"items": {}}, {"machines": []}, {"items": [{"id": 1}]}], ids=str
)
def test_fake_gce__rejects_its_own_invalid_responses(answer: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        discovery.check_answer(Call("instances.list", {}, {}), answer)


def test_fake_gce__requires_credentials(gce: FakeGce) -> None:
    reported = gce.serve("GET", f"{INSTANCES.replace('/p/', '/perdure-test/')}", "Bearer made-up", b"")
    assert reported is not None
    assert reported[0] == 401


def test_fake_gce__rejects_invalid_filters(gce: FakeGce) -> None:
    with pytest.raises(Invalid, match="Invalid list filter expression"):
        gce.ask("GET", "zones/us-central1-a/instances", filter="name == x")
