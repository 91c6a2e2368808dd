"""A node with a home of its own, which may run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.agent.lifecycle.supervised_node import Node


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    node = Node(tmp_path)
    node.desired.apply_directive({"target": "run", "node_ips": ["10.0.0.1"]})
    yield node
    if node.supervisor is not None:
        node.supervisor.kill()
