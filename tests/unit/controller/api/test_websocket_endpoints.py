"""WebSockets while the database is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient, WebSocketDenialResponse
from structlog.testing import capture_logs

from perdure.controller.api import websocket_endpoints
from perdure.controller.api.app import application
from perdure.controller.api.websocket_endpoints import CHANNEL, NODE_STREAMS
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    def unavailable(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, ConnectionError("the server is away"))

    daemon = Daemon(Settings(tmp_path), ManualClock())
    monkeypatch.setattr(websocket_endpoints, "identify", unavailable)
    yield TestClient(application(daemon.api_context), base_url="http://127.0.0.1")
    daemon.socket.close()
    daemon.close()


@pytest.mark.parametrize("path", [CHANNEL, f"{NODE_STREAMS}s"])
def test_websocket__during_an_outage_of_the_database_costs_a_line_of_the_log(client: TestClient, path: str) -> None:
    headers = {"Authorization": "Bearer of-a-node"}
    with (
        capture_logs() as lines,
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect(f"ws://127.0.0.1{path}", headers=headers),
    ):
        pass
    assert denied.value.status_code == 503, "the node tries again"
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("database.unavailable", "warning")
    assert "the server is away" in line["error"]
    assert "\n" not in line["error"]
