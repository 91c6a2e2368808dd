"""Fixtures of the tests of submissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import update

from perdure.controller.daemon import Daemon
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.store.records import clusters
from perdure.controller.store.records.jobs import Job
from unit.controller.submit.sky import Sky


@pytest.fixture(scope="module")
def cluster_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(Settings(tmp_path_factory.mktemp("home")), ManualClock())
    yield daemon
    daemon.socket.close()
    daemon.close()


@pytest.fixture
def sky(cluster_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Sky]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[-60:].strip("-0123456789")
    sky = Sky(cluster_daemon, cluster_daemon.api_context.cluster_service, name)
    sky.service = replace(sky.service, cancel=lambda ids, _grace_s: sky.cancelled.extend(ids))
    yield sky
    with cluster_daemon.database.begin() as conn:  # later tests do not see it
        conn.execute(update(clusters.Cluster).values(wanted="DOWN", active_name=None))
        conn.execute(update(Job).values(finalized=True))
