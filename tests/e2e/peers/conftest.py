"""Several controllers on one PostgreSQL, behind one address, over one local cloud. Only the network is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e.peers.cluster import Several, StartCluster
from support.fakes.tcp_relay import Line
from support.helpers.postgres_server import Postgres


@pytest.fixture
def several(postgres: Postgres, tmp_path: Path) -> Iterator[StartCluster]:
    """Starts a cluster with daemons of these names; those in `with_lines` reach the database through a relay."""
    made: list[Several] = []

    def make(*names: str, with_lines: Sequence[str] = (), **more: Any) -> Several:
        one = Several(tmp_path, postgres, postgres.new_database(), **more)
        one.lines |= {name: Line(postgres.port) for name in with_lines}
        made.append(one)
        one.begin(*names)
        return one

    yield make
    for one in made:
        one.end()
