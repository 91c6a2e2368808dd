"""The fake Compute Engine takes, and says, nothing that Google's own description of the API does not know."""

from __future__ import annotations

from typing import Any

import pytest

from fake_gce import FakeGce, discovery
from fake_gce.discovery import Call, Invalid

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
def test_a_request_that_is_none_of_the_apis(
    http_method: str, path: str, query: dict[str, str], body: bytes, wrong: str
) -> None:
    with pytest.raises(Invalid, match=wrong):
        discovery.read(http_method, path, query, body)


@pytest.mark.parametrize(
    "answer", [{"items": [{"status": "ALIVE"}]}, {"items": {}}, {"machines": []}, {"items": [{"id": 1}]}], ids=str
)
def test_an_answer_that_google_could_not_have_given(answer: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        discovery.check_answer(Call("instances.list", {}, {}), answer)


def test_whoever_does_not_say_who_it_is_is_not_let_in(gce: FakeGce) -> None:
    told = gce.serve("GET", f"{INSTANCES.replace('/p/', '/perdure-test/')}", "Bearer made-up", b"")
    assert told is not None
    assert told[0] == 401


def test_a_filter_that_google_could_not_read(gce: FakeGce) -> None:
    with pytest.raises(Invalid, match="Invalid list filter expression"):
        gce.ask("GET", "zones/us-central1-a/instances", filter="name == x")
