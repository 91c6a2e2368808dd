"""A controller and a node, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    controller.start()
    yield controller
    controller.stop()
    assert controller.wrong == []


@pytest.fixture
def node(controller: Controller, tmp_path: Path) -> Iterator[Node]:
    node = Node(controller, tmp_path)
    yield node
    node.destroy()
    print(node.agent_log.read_text() if node.agent_log.exists() else "the agent never ran")
