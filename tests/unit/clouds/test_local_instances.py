"""What the directories of instances are taken to mean."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.base import InstanceState
from perdure.controller.clouds.local import layout, locks
from perdure.controller.clouds.local.instances import Instances, Record
from perdure.recovery.reasons import Reason

OWNER = {"controller": "c", "job_id": 1, "task": 0, "generation": 1, "token": "t"}
WHAT = {"id": "i", "rank": 0, "owner": OWNER, "region": "r", "zone": "z", "instance_type": "m", "ip": "127.77.1.1"}


@pytest.fixture
def instances(tmp_path: Path) -> Instances:
    return Instances("local", tmp_path)


def write(instances: Instances, **state: Any) -> Path:
    folder = instances.folder / "i"
    (folder / layout.ORDERS).mkdir(parents=True, exist_ok=True)
    layout.write_json(str(folder / layout.STATE), {"instance": WHAT, **state})
    (folder / layout.LOCK).touch()
    (folder / layout.MACHINE / "disk").mkdir(parents=True, exist_ok=True)
    return folder


def get(instances: Instances) -> Record:
    record = instances.get("i")
    assert record is not None
    return record


def dead_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_launching_is_pending_while_somebody_holds_it(instances: Instances) -> None:
    folder = write(instances, state=layout.LAUNCHING)
    lock = locks.hold(str(folder / layout.LOCK))
    assert instances.describe(get(instances)).state is InstanceState.PENDING
    assert not get(instances).was_abandoned
    os.close(lock)
    assert get(instances).was_abandoned
    assert instances.describe(get(instances)).state is InstanceState.GONE
    assert (folder / layout.MACHINE).exists(), "its launch may be finished yet"


def test_a_machine_lives_while_its_first_process_does(instances: Instances) -> None:
    """Its host was killed; the kernel is still about to kill the machine."""
    pid = os.getpid()
    write(instances, state=layout.RUNNING, launched_at=5.0, pid=pid, pid_started=layout.start_time(pid))
    assert instances.describe(get(instances)).state is InstanceState.RUNNING


@pytest.mark.parametrize("pid", [os.getpid, dead_process])
def test_a_process_that_is_another_by_now_is_no_sign_of_life(instances: Instances, pid: Callable[[], int]) -> None:
    folder = write(instances, state=layout.RUNNING, launched_at=5.0, pid=pid(), pid_started=1)
    os.utime(folder / layout.LOCK, (60.0, 60.0))
    gone = instances.describe(get(instances))
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.MACHINE_CRASHED)
    assert gone.ended_at == 60.0, "its host's last sign of life"
    assert [p.name for p in folder.iterdir()] == [layout.STATE]
    assert instances.describe(get(Instances("local", instances.folder))) == gone, "written down"


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("PREEMPTED", Reason.PREEMPTED),
        ("TERMINATED", Reason.MACHINE_STOPPED),
        ("STOPPED", Reason.MACHINE_STOPPED),
        ("CRASHED", Reason.MACHINE_CRASHED),
    ],
)
def test_why_it_ended(instances: Instances, reason: str, meaning: Reason) -> None:
    write(instances, state=layout.ENDED, launched_at=5.0, ended_at=9.0, reason=reason)
    gone = instances.describe(get(instances))
    assert (gone.state, gone.gone_reason, gone.ended_at) == (InstanceState.GONE, meaning, 9.0)


def test_told_to_end_is_ending(instances: Instances) -> None:
    folder = write(instances, state=layout.RUNNING, launched_at=5.0, pid=0, pid_started=0)
    lock = locks.hold(str(folder / layout.LOCK))
    layout.give_order(str(folder), layout.TERMINATE, {})
    assert instances.describe(get(instances)).state is InstanceState.ENDING
    os.close(lock)


def test_an_order_is_taken_once_and_the_next_one_is_kept(instances: Instances) -> None:
    folder = str(write(instances, state=layout.LAUNCHING))
    assert layout.take_order(folder, layout.INTERRUPT) is None
    layout.give_order(folder, layout.INTERRUPT, {"notice_s": 5})
    layout.give_order(folder, layout.INTERRUPT, {"notice_s": None})
    assert layout.take_order(folder, layout.INTERRUPT) == {"notice_s": None}
    assert layout.take_order(folder, layout.INTERRUPT) is None
