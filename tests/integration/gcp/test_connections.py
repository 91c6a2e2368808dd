"""Calls without an SDK client: the caller's credentials, and one session per thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident

import pytest
from google.auth.transport.requests import AuthorizedSession

from perdure.controller.clouds.gcp.pricing import retail_prices
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.runtime.clock import ManualClock
from support.fakes.gce import FakeGce

pytestmark = pytest.mark.long


def test_session__is_kept_per_thread(gce: FakeGce, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of `requests` are not thread-safe, and regions are queried concurrently."""
    connections = GcpConnections(GcpSettings(endpoint_url=gce.url), ManualClock())
    made: list[int] = []
    new = GcpConnections.session

    def counted(self: GcpConnections) -> AuthorizedSession:
        made.append(get_ident())
        return new(self)

    monkeypatch.setattr(GcpConnections, "session", counted)
    together = Barrier(2)

    def ask() -> None:
        together.wait(10)
        for _ in range(3):
            retail_prices.check_access(connections)

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(ask) for _ in range(2)]:
            one.result()
    assert len(made) == len(set(made)) == 2
    assert gce.calls["services.skus.list"] == 6
