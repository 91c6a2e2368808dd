"""The API of a daemon with a clock that tests set, and a browser that is signed in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.controller.api.app import create_app
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings

URL = "http://127.0.0.1:8080"


@dataclass
class Dashboard:
    """`browser` keeps cookies, and sends what a page of this server sends. `caller` has the user token."""

    daemon: Daemon
    clock: ManualClock
    browser: TestClient
    caller: TestClient

    def new_code(self) -> str:
        return str(self.caller.post("/api/v1/session/codes").json()["code"])

    def sign_in(self) -> str:
        """Sign the browser in; returns the page value, which it sends from now on."""
        response = self.browser.post("/api/v1/session", json={"code": self.new_code()})
        assert response.status_code == 201, response.text
        self.browser.headers["Perdure-CSRF"] = value = str(response.json()["csrf"])
        return value


@pytest.fixture
def dashboard(tmp_path: Path, migrated: Path) -> Iterator[Dashboard]:
    shutil.copyfile(migrated, tmp_path / "perdure.db")
    clock = ManualClock()
    daemon = Daemon(Settings(tmp_path), clock)
    app = create_app(daemon.api_context)
    token = {"Authorization": f"Bearer {daemon.api_context.keyring.user_token}"}
    browser = TestClient(app, base_url=URL, headers={"Origin": URL, "Sec-Fetch-Site": "same-origin"})
    yield Dashboard(daemon, clock, browser, TestClient(app, base_url=URL, headers=token))
    daemon.socket.close()
    daemon.close()
