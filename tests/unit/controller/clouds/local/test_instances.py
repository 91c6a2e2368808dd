"""The states of instances, from their directories."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.clouds.local import layout, locks
from perdure.controller.clouds.local.instances import InstanceRecord, InstanceStore
from perdure.recovery.reasons import Reason

OWNER = {"controller": "c", "job_id": 1, "task": 0, "generation": 1, "token": "t"}
WHAT = {"id": "i", "rank": 0, "owner": OWNER, "region": "r", "zone": "z", "instance_type": "m", "ip": "127.77.1.1"}


@pytest.fixture
def instances(tmp_path: Path) -> InstanceStore:
    return InstanceStore("local", tmp_path)


def write(instances: InstanceStore, **state: Any) -> Path:
    folder = instances.folder / "i"
    (folder / layout.COMMANDS).mkdir(parents=True, exist_ok=True)
    layout.write_json(str(folder / layout.STATE), {"instance": WHAT, **state})
    (folder / layout.LOCK).touch()
    (folder / layout.MACHINE / "disk").mkdir(parents=True, exist_ok=True)
    return folder


def get(instances: InstanceStore) -> InstanceRecord:
    record = instances.get("i")
    assert record is not None
    return record


def dead_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_describe__is_pending_while_the_launch_holds_the_lock(instances: InstanceStore) -> None:
    folder = write(instances, state=layout.LAUNCHING)
    lock = locks.hold(str(folder / layout.LOCK))
    assert instances.describe(get(instances)).state is InstanceState.PENDING
    assert not get(instances).was_abandoned
    os.close(lock)
    assert get(instances).was_abandoned
    assert instances.describe(get(instances)).state is InstanceState.GONE
    assert (folder / layout.MACHINE).exists(), "its launch may still complete"


def test_describe__is_running_while_the_first_process_lives(instances: InstanceStore) -> None:
    """The host was killed, and the kernel has not killed the machine yet."""
    pid = os.getpid()
    write(instances, state=layout.RUNNING, launched_at=5.0, pid=pid, pid_started=layout.start_time(pid))
    assert instances.describe(get(instances)).state is InstanceState.RUNNING


@pytest.mark.parametrize("pid", [os.getpid, dead_process])
def test_describe__ignores_a_reused_process_id(instances: InstanceStore, pid: Callable[[], int]) -> None:
    folder = write(instances, state=layout.RUNNING, launched_at=5.0, pid=pid(), pid_started=1)
    os.utime(folder / layout.LOCK, (60.0, 60.0))
    gone = instances.describe(get(instances))
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.MACHINE_CRASHED)
    assert gone.ended_at == 60.0, "the last time its host was seen alive"
    assert [p.name for p in folder.iterdir()] == [layout.STATE]
    assert instances.describe(get(InstanceStore("local", instances.folder))) == gone, "the end is stored"


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("PREEMPTED", Reason.PREEMPTED),
        ("TERMINATED", Reason.MACHINE_STOPPED),
        ("STOPPED", Reason.MACHINE_STOPPED),
        ("CRASHED", Reason.MACHINE_CRASHED),
    ],
)
def test_describe__reports_the_reason_of_the_end(instances: InstanceStore, reason: str, meaning: Reason) -> None:
    write(instances, state=layout.ENDED, launched_at=5.0, ended_at=9.0, reason=reason)
    gone = instances.describe(get(instances))
    assert (gone.state, gone.gone_reason, gone.ended_at) == (InstanceState.GONE, meaning, 9.0)


@pytest.mark.parametrize("kept", ["", layout.MACHINE, layout.SPEC])
def test_ended_machine__whose_removal_was_interrupted_is_removed_by_the_next_daemon(
    instances: InstanceStore, kept: str
) -> None:
    folder = write(instances, state=layout.ENDED, launched_at=5.0, ended_at=9.0, reason=layout.CRASHED)
    (folder / layout.SPEC).write_text('{"token": "secret"}')
    for name in {layout.MACHINE, layout.COMMANDS, layout.SPEC, layout.LOCK} - {kept} if kept else ():
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    assert instances.describe(get(instances)).ended_at == 9.0
    assert [p.name for p in folder.iterdir()] == [layout.STATE]


def test_ended_machine__is_left_to_the_host_that_removes_it(instances: InstanceStore) -> None:
    folder = write(instances, state=layout.ENDED, launched_at=5.0, ended_at=9.0, reason=layout.PREEMPTED)
    lock = locks.hold(str(folder / layout.LOCK))
    assert get(instances).is_gone
    assert (folder / layout.MACHINE).exists()
    os.close(lock)  # the host was killed while it removed the disk
    assert get(instances).is_gone
    assert not (folder / layout.MACHINE).exists()


def test_tombstone__whose_writer_was_killed_is_completed_by_the_next_daemon(instances: InstanceStore) -> None:
    folder = write(instances, state=layout.RUNNING, launched_at=5.0, pid=dead_process(), pid_started=1)
    (folder / layout.SPEC).write_text('{"token": "secret"}')
    code = (
        "import sys; from pathlib import Path; from perdure.controller.runtime import failpoints\n"
        "from perdure.controller.clouds.local.instances import InstanceStore\n"
        "failpoints.enable('local_machines.ended'); InstanceStore('local', Path(sys.argv[1])).get('i')"
    )
    died = subprocess.run([sys.executable, "-c", code, str(instances.folder)], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (folder / layout.SPEC).exists(), "the test is about its removal"
    assert instances.describe(get(instances)).gone_reason is Reason.MACHINE_CRASHED
    assert [p.name for p in folder.iterdir()] == [layout.STATE]


def test_describe__is_ending_after_a_terminate_command(instances: InstanceStore) -> None:
    folder = write(instances, state=layout.RUNNING, launched_at=5.0, pid=0, pid_started=0)
    lock = locks.hold(str(folder / layout.LOCK))
    layout.write_command(str(folder), layout.TERMINATE, {})
    assert instances.describe(get(instances)).state is InstanceState.ENDING
    os.close(lock)


def test_read_command__removes_one_command_and_keeps_the_next(instances: InstanceStore) -> None:
    folder = str(write(instances, state=layout.LAUNCHING))
    assert layout.read_command(folder, layout.INTERRUPT) is None
    layout.write_command(folder, layout.INTERRUPT, {"notice_s": 5})
    layout.write_command(folder, layout.INTERRUPT, {"notice_s": None})
    assert layout.read_command(folder, layout.INTERRUPT) == {"notice_s": None}
    assert layout.read_command(folder, layout.INTERRUPT) is None
