"""When a node of a cluster ends by itself because no controller answers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.agent.lifecycle.slot_host import MIN_SILENCE_S, POLL_S, SlotHost
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.main import AUTOSTOP_POWER_OFF_S, _silence_limit_s
from perdure.agent.paths import NodePaths
from support.helpers.timing import pause, wait_until

IDLE_S = 0.3


def idle_host(root: Path) -> SlotHost:
    """A host whose controller has been silent for long."""
    paths = NodePaths(root)
    paths.create()
    host = SlotHost(paths, Outbox(Report(ip=""), notices=[], sizes=dict), library=root, environ={}, log=print)
    host.last_contact = lambda: time.monotonic() - 2 * MIN_SILENCE_S
    return host


def receive(host: SlotHost, **autostop: Any) -> None:
    host.handle_message({"type": "slots", "slots": [], **autostop})


def stays(host: SlotHost) -> bool:
    """Whether the host goes on for longer than its idle time."""
    pause(IDLE_S + 2 * POLL_S)
    return not host.is_done()


def until_done(host: SlotHost) -> None:
    wait_until(host.is_done, "the node to end", 20)


def test_idle_node__ends_unless_autostop_is_off(tmp_path: Path) -> None:
    host = idle_host(tmp_path)
    receive(host, autostop_s=None)
    assert stays(host)
    receive(host, autostop_s=IDLE_S)
    until_done(host)


def test_session__keeps_a_node_while_it_is_waited_for(tmp_path: Path) -> None:
    host = idle_host(tmp_path)
    host.used_at = time.monotonic
    receive(host, autostop_s=IDLE_S, wait_for="jobs_and_ssh")
    assert stays(host)
    receive(host, autostop_s=IDLE_S, wait_for="jobs")
    until_done(host)


def test_node_that_waits_for_nothing__counts_from_each_change(tmp_path: Path) -> None:
    host = idle_host(tmp_path)
    host.used_at = time.monotonic
    pause(IDLE_S)
    receive(host, autostop_s=IDLE_S, wait_for="none", active_at=1.0)
    assert not host.is_done()
    until_done(host)
    receive(host, autostop_s=IDLE_S, wait_for="none", active_at=1.0)
    assert host.is_done(), "nothing has changed"
    receive(host, autostop_s=IDLE_S, wait_for="none", active_at=2.0)
    assert not host.is_done()


@pytest.mark.parametrize(
    ("is_host", "outcome", "limit_s"),
    [
        (True, {"exit_code": 0, "interrupted": False}, AUTOSTOP_POWER_OFF_S),
        (True, {"exit_code": None, "interrupted": True}, 3600.0),
        (True, {"exit_code": 0, "interrupted": True}, 3600.0),
        (True, None, 3600.0),
        (False, {"exit_code": 0, "interrupted": False}, 3600.0),
    ],
)
def test_node_that_stopped_itself__soon_powers_off(
    is_host: bool, outcome: dict[str, object] | None, limit_s: float
) -> None:
    spec: Any = SimpleNamespace(is_host=is_host, power_off_after_s=3600.0)
    assert _silence_limit_s(spec, outcome) == limit_s
    sooner: Any = SimpleNamespace(is_host=is_host, power_off_after_s=5.0)
    assert _silence_limit_s(sooner, outcome) == 5.0


@pytest.mark.parametrize("wait_for", ["jobs", "none"])
def test_setting__survives_a_restart_of_the_agent(tmp_path: Path, wait_for: str) -> None:
    receive(idle_host(tmp_path), autostop_s=IDLE_S, wait_for=wait_for)
    host = idle_host(tmp_path)
    host.used_at = time.monotonic
    host.restore()
    until_done(host)
