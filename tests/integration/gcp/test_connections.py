"""Calls without a client: with the caller's credentials, and a session for each thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from typing import Any

import pytest

from fake_gce import FakeGce
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.gcp import billing
from perdure.controller.clouds.gcp.connections import Connections
from perdure.controller.clouds.gcp.settings import GcpSettings


def test_a_session_is_one_threads_and_is_kept_for_its_next_call(gce: FakeGce, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of `requests` are not made for several threads, and regions are asked side by side."""
    connections = Connections(GcpSettings(endpoint_url=gce.url), ManualClock())
    made: list[int] = []
    new = Connections.session

    def counted(self: Connections) -> Any:
        made.append(get_ident())
        return new(self)

    monkeypatch.setattr(Connections, "session", counted)
    together = Barrier(2)

    def ask() -> None:
        together.wait(10)
        for _ in range(3):
            billing.look(connections)

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(ask) for _ in range(2)]:
            one.result()
    assert len(made) == len(set(made)) == 2
    assert gce.calls["services.skus.list"] == 6
