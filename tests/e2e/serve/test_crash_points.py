"""A controller that dies at each failpoint of services: the service comes up, changes and ends all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.controller.runtime.failpoints import SERVICE_FAILPOINTS, VARIABLE
from perdure.sdk import serve
from support.helpers.services import HAS_HAPROXY, ServiceHost, running_services, service_task

pytestmark = pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")

BOTH = [(1, 2), (2, 2)]
IN_SHORT = ("service.decided", "replica.changed")


def pid_of(sky: ServiceHost) -> int:
    return int(json.loads((sky.controller.home / "controller.json").read_text())["pid"])


def live_through(home: Path, point: str) -> None:
    """Start, update and end a service, while the controller dies at `point`."""
    environ = {VARIABLE: point}
    with running_services(home, environ=environ) as sky:
        begun_with = pid_of(sky)
        environ.clear()  # the next daemon does not die
        caller = sky.up("model", service_task({"replicas": 2}), ready=2)
        assert caller.call().status == 200
        serve.update(service_task({"replicas": 2}, envs={"MODEL": "other"}), "model", client=sky.client)
        sky.until("model", lambda _: [(r["number"], r["version"]) for r in sky.ready("model")] == BOTH, "both in place")
        assert caller.call().json()["model"] == "other"
        serve.update(service_task({"replicas": 1}, envs={"MODEL": "new"}), "model", client=sky.client)
        sky.until("model", lambda one: [r["version"] for r in one["replicas"] if not r["ended_at"]] == [3], "version 3")
        sky.until_ready("model", 1)
        assert caller.call().json()["model"] == "new"
        assert max(one["number"] for one in sky.get("model")["replicas"]) == 3, "no replica was launched twice"
        sky.controller.perdure("serve", "down", "model", "--yes")
        assert sky.get("model")["status"] == "DOWN"
        sky.controller.until(sky.no_machines, "the end of every machine")
        assert pid_of(sky) != begun_with, f"the controller did not die at {point}"
        assert not sky.controller.errors()


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_SHORT)
def test_service__survives_the_death_of_its_controller(tmp_path: Path, point: str) -> None:
    live_through(tmp_path / "home", point)


@pytest.mark.long
@pytest.mark.parametrize("point", [point for point in SERVICE_FAILPOINTS if point not in IN_SHORT])
def test_service__survives_a_death_at_any_failpoint(tmp_path: Path, point: str) -> None:
    live_through(tmp_path / "home", point)
