"""Viewers of a list of jobs share its answer, but not that of a list that is too long to be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from perdure.controller.api.access import shared_answers
from perdure.controller.api.app import create_app
from perdure.controller.api.routes import jobs
from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings


def test_queue__shares_only_short_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = jobs._page_of_queue

    def count(context: Any, filter_: Any, *more: Any) -> bytes:
        computed.append(filter_.limit)
        return compute(context, filter_, *more)

    monkeypatch.setattr(jobs, "_page_of_queue", count)
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 3600.0)
    daemon = Daemon(Settings(tmp_path), ManualClock())
    headers = {"Authorization": f"Bearer {daemon.api_context.keyring.user_token}"}
    with TestClient(create_app(daemon.api_context), base_url="http://127.0.0.1", headers=headers) as client:
        for limit in (50, 50, 10_000, 10_000):
            assert client.get(f"/api/v1/jobs?shared=1&limit={limit}").status_code == 200
    assert computed == [50, 10_000, 10_000]
    daemon.socket.close()
    daemon.close()
