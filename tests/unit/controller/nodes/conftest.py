"""Fixtures of the tests of node sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.nodes.session import NodeSessions
from support.fakes.node_sessions import FakeReconciler, make_sessions


@pytest.fixture
def reconciler() -> FakeReconciler:
    return FakeReconciler()


@pytest.fixture
def sessions(reconciler: FakeReconciler, tmp_path: Path) -> NodeSessions:
    return make_sessions(reconciler, tmp_path)
