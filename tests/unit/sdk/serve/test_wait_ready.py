"""Waiting for a service whose proxy cannot be started."""

from __future__ import annotations

import pytest

from perdure.sdk import serve
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint


def test_wait_ready__ends_if_nothing_answers_at_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is back in time is waited for; one that is not is named."""
    answers = [("NO_REPLICA", 1), ("NO_REPLICA", 1), ("REPLICA_INIT", 0), *[("NO_REPLICA", 1)] * 9]

    def get(_name: str, **_options: object) -> dict[str, object]:
        status, ready = answers.pop(0)
        return {"status": status, "ready_replicas": ready, "message": "its proxy cannot be started: port in use"}

    monkeypatch.setattr(serve, "get", get)
    monkeypatch.setattr(serve, "POLL_S", 0.001)
    monkeypatch.setattr(serve, "PROXY_TIMEOUT_S", 0.003)
    with pytest.raises(serve.ServiceNotReady, match="nothing answers at the endpoint of model: its proxy cannot"):
        serve.wait_ready("model", client=Client(Endpoint("http://127.0.0.1:9", "token")))
    assert len(answers) == 6
