"""A separate daemon for each module, over real HTTP. Its local cloud has no capacity, so no job ever gets a machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.api.daemons import Daemon, StartDaemon, start

FULL = "local:\n  zones:\n    local-a: {region: local, capacity: 0}\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = start(tmp_path_factory.mktemp("daemon") / "home", FULL)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def start_daemon() -> StartDaemon:
    """`start`, for modules with other configurations."""
    return start
