"""A controller per module, for its services."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.helpers.services import HAS_HAPROXY, ServiceHost, running_services


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHost]:
    if not HAS_HAPROXY:
        pytest.skip("HAProxy is not installed: run scripts/ensure-haproxy.sh")
    with running_services(tmp_path_factory.mktemp("home")) as one:
        yield one
