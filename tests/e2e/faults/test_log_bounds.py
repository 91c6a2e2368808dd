"""Jobs that print without end, on a real daemon: a log is cut at its limit, and the disk keeps a reserve."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.helpers.controllers import Controller, ControllerOn

CUT = "the log of this node is cut here, because limits.max_log_gib is"
FILLER_BYTES, OUTPUT_BYTES, DISK = 30 * 2**20, 32 * 10**6, "64m"


def launch(controller: Controller, name: str, run: str) -> int:
    task = {"name": name, "run": run}
    return int(controller.client.submit(name, [task], user="", key=os.urandom(8).hex())["job_id"])


def stored_log(controller: Controller, job: int) -> Path:
    return controller.home / "logs" / str(job) / "0" / "1" / "0.log"


def test_log__is_cut_at_its_limit_and_the_job_goes_on(controller_on: ControllerOn, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("limits: {max_log_gib: 0.001}\n")
    with controller_on(tmp_path) as controller:
        job = launch(controller, "flood", "yes 'a line of output' | head -c 30000000; exit 0")
        controller.until(lambda: controller.job(job)["status"] == "SUCCEEDED", "the end of the job")
        assert controller.job(job)["recovery_count"] == 0
        log = stored_log(controller, job).read_text()
        assert len(log) < 0.001 * 2**30 + 1000
        assert CUT in log.splitlines()[-1]
        assert CUT in controller.log(job)
        assert controller.errors() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home on a small file system, with its machines elsewhere."""
    home = tmp_path / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(home)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        (home / "config.yaml").write_text(f"local: {{directory: {tmp_path}}}\n")
        yield home
    finally:
        subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.slow
def test_disk_reserve__holds_logs_alone_and_loses_nothing(controller_on: ControllerOn, small_disk: Path) -> None:
    with controller_on(small_disk) as controller:
        (small_disk / "filler").write_bytes(bytes(FILLER_BYTES))
        flood = launch(controller, "flood", f"yes 'a line of output' | head -c {OUTPUT_BYTES}; sleep 600")
        stays = launch(controller, "stays", "sleep 600")
        controller.until(
            lambda: "logs.held" in (small_disk / "controller.log").read_text(), "logs that are held by the reserve"
        )
        assert stored_log(controller, flood).stat().st_size < OUTPUT_BYTES
        late = launch(controller, "late", "true")
        controller.until(lambda: controller.job(late)["status"] == "SUCCEEDED", "a job that was launched meanwhile")
        controller.perdure("jobs", "cancel", stays, "--yes", "--no-graceful")
        controller.until(lambda: controller.job(stays)["status"] == "CANCELLED", "a cancel meanwhile")
        assert controller.job(flood)["status"] == "RUNNING"
        assert stored_log(controller, flood).stat().st_size < OUTPUT_BYTES
        (small_disk / "filler").unlink()
        controller.until(lambda: stored_log(controller, flood).stat().st_size == OUTPUT_BYTES, "the rest of the log")
        line = b"a line of output\n"
        assert stored_log(controller, flood).read_bytes() == (line * (OUTPUT_BYTES // len(line) + 1))[:OUTPUT_BYTES]
        assert controller.job(flood)["recovery_count"] == 0
