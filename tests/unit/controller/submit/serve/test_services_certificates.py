"""The certificates of services: replaced by an update, and refused where no proxy could serve them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.security.certificates import generate_self_signed
from perdure.controller.store.services import records
from perdure.controller.store.services.records import Versions
from unit.controller.submit.serve.conftest import SERVICE, Controller


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Two keys with their certificates."""
    folder, found = tmp_path_factory.mktemp("pems"), []
    for name in ("a", "b"):
        cert, key = folder / f"{name}.cert", folder / f"{name}.key"
        generate_self_signed(cert, key, names=("x",), clock=ManualClock())
        found.append({"key": key.read_text(), "cert": cert.read_text()})
    return found


def test_update__replaces_the_certificate(alone: Controller, pems: list[dict[str, str]]) -> None:
    section = {**SERVICE["service"], "tls": {"keyfile": "k", "certfile": "c"}}  # type: ignore[dict-item]
    with_tls = {**SERVICE, "service": section}
    alone.up()
    requests = alone.daemon.api_context.services.requests  # type: ignore[union-attr]

    def update(task: dict[str, Any], tls: dict[str, str], key: str) -> tuple[str, list[str], str]:
        answer = alone.call("POST", "/services/model/update", task=task, key=key, tls=tls).json()
        served = requests.endpoint_of(requests.get("model")).tls_cert
        return answer["endpoint"].partition(":")[0], answer["warnings"], served

    token = requests.endpoint_of(requests.get("model")).token
    scheme, warnings, served = update(with_tls, pems[0], "1")
    assert (scheme, served) == ("https", pems[0]["cert"])
    assert "the endpoint changes to https: its callers need the new URL" in warnings
    scheme, warnings, served = update(with_tls, pems[1], "2")
    assert (scheme, served) == ("https", pems[1]["cert"])
    assert not any("changes to" in line for line in warnings)
    scheme, warnings, served = update(SERVICE, {}, "3")
    assert (scheme, served) == ("http", "")
    assert any("changes to http:" in line for line in warnings)
    assert requests.endpoint_of(requests.get("model")).token == token


def test_certificate__that_cannot_be_served_is_refused(alone: Controller, pems: list[dict[str, str]]) -> None:
    section = {**SERVICE["service"], "tls": {"keyfile": "k", "certfile": "c"}}  # type: ignore[dict-item]
    mixed = {"key": pems[0]["key"], "cert": pems[1]["cert"]}
    answer = alone.up({**SERVICE, "service": section}, tls=mixed)
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, "service.tls.keyfile")
    assert alone.rows(records.Services) == []
    alone.up()
    for tls, where in ((mixed, "service.tls.keyfile"), ({}, "service.tls")):
        body = {"task": {**SERVICE, "service": section}, "key": "1", "tls": tls}
        answer = alone.call("POST", "/services/model/update", **body)
        assert (answer.status_code, answer.json()["error"]["where"]) == (400, where)
    assert len(alone.rows(Versions)) == 1
