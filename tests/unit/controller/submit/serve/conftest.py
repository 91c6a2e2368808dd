"""A controller without a reconciler, to which requests about services are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import select

from perdure.controller.api.app import create_app
from perdure.controller.api.serve import proxies
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings

SERVICE = {
    "service": {"readiness_probe": "/up", "replicas": 2},
    "resources": {"ports": 8080},
    "run": "serve $SKYPILOT_NODE_IPS",
}


@dataclass(frozen=True)
class Controller:
    client: TestClient
    daemon: Daemon

    def call(self, method: str, path: str, **body: Any) -> Response:
        headers = {"Authorization": f"Bearer {self.daemon.api_context.keyring.user_token}"}
        return self.client.request(method, f"/api/v1{path}", json=body or None, headers=headers)

    def up(self, task: dict[str, Any] | None = None, **more: Any) -> Response:
        return self.call("POST", "/services", **{"name": "model", "task": task or SERVICE, "key": "k", **more})

    def evaluate(self) -> None:
        assert self.daemon.api_context.services is not None
        self.daemon.api_context.services.watch.evaluate()

    def rows(self, table: Any) -> list[Any]:
        with self.daemon.database.connect() as conn:
            return list(conn.execute(select(table)))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """A controller with an embedded database."""
    monkeypatch.setattr(proxies, "OPEN_TIMEOUT_S", 0.0)  # nothing opens endpoints here
    monkeypatch.setattr(proxies, "find_haproxy", lambda: "/usr/sbin/haproxy")
    daemon = Daemon(Settings(tmp_path), ManualClock())
    yield Controller(TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1"), daemon)
    daemon.socket.close()
    daemon.close()
