"""Who may read /metrics, and in which format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import read_settings

Open = Callable[[str], TestClient]


@pytest.fixture
def open_client(tmp_path: Path) -> Iterator[Open]:
    """Starts a daemon with a `listen` section, and returns a client that calls it from 127.0.0.1."""
    daemons = []

    def start(listen: str) -> TestClient:
        (tmp_path / "config.yaml").write_text(f"listen: {{{listen}}}\n")
        daemon = Daemon(read_settings(tmp_path), ManualClock())
        daemons.append(daemon)
        return TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1", client=("127.0.0.1", 1))

    yield start
    for daemon in daemons:
        daemon.socket.close()
        daemon.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_metrics__need_a_token(open_client: Open, tmp_path: Path) -> None:
    client = open_client("")
    response = client.get("/metrics")
    assert response.status_code == 401
    assert "listen.metrics.token_file" in response.json()["error"]["fix"]
    user_token = (tmp_path / "token").read_text().strip()
    assert client.get("/metrics", headers=bearer(user_token)).status_code == 200


def test_token_file__reads_metrics_and_nothing_else(open_client: Open, tmp_path: Path) -> None:
    (tmp_path / "metrics.token").write_text("s" * 40 + "\n")
    client = open_client("metrics: {token_file: metrics.token}")
    assert client.get("/metrics", headers=bearer("s" * 40)).status_code == 200
    assert client.get("/metrics", headers=bearer("t" * 40)).status_code == 401
    assert client.get("/api/v1/jobs", headers=bearer("s" * 40)).status_code == 401
    (tmp_path / "metrics.token").write_text("t" * 40)
    assert client.get("/metrics", headers=bearer("t" * 40)).status_code == 200, "the file may be replaced"
    (tmp_path / "metrics.token").unlink()
    assert client.get("/metrics", headers=bearer("t" * 40)).status_code == 401
    (tmp_path / "metrics.token").write_text("")
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 401


def test_open_on_loopback__admits_this_computer_only(open_client: Open) -> None:
    client = open_client("metrics: {open_on_loopback: true}")
    assert client.get("/metrics").status_code == 200
    remote = TestClient(client.app, base_url="http://127.0.0.1", client=("10.0.0.9", 1))
    assert remote.get("/metrics").status_code == 401


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("trust_proxy_tls: true, metrics: {open_on_loopback: true}", "a proxy on this computer would open"),
        ("metrics: {open_on_loopback: 1}", "expected true or false"),
        ("metrics: {token_file: 1}", "expected the path of a file"),
        ("metrics: {tokens: x}", "no such setting"),
        ("metrics: yes", "expected a mapping with token_file"),
    ],
)
def test_metrics_section__rejects_mistakes(tmp_path: Path, listen: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(f"listen: {{{listen}}}\n")
    with pytest.raises(SettingsError, match=message):
        read_settings(tmp_path)


def test_format__follows_the_accept_header(open_client: Open) -> None:
    client = open_client("metrics: {open_on_loopback: true}")
    plain = client.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in plain.text
    opened = client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"})
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("\n# EOF\n")


def test_requests__are_counted_by_route_and_never_by_path(open_client: Open) -> None:
    client = open_client("metrics: {open_on_loopback: true}")
    for path in ("/nothing/1", "/nothing/2", "/healthz", "/metrics"):
        client.get(path)
    text = client.get("/metrics").text
    assert 'perdure_http_requests_total{route="other",method="GET",status="404"} 2' in text
    assert 'perdure_http_requests_total{route="/metrics",method="GET",status="200"} 1' in text
    assert "nothing" not in text
