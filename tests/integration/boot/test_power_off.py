"""A booted machine is powered off, as clouds do it, and nothing that the program saved in its grace time is lost."""

from __future__ import annotations

import pytest

from integration.boot.conftest import BUCKET, BootedJobs
from support.helpers.timing import wait_until
from support.worlds.jobs_on_clouds import keys_in

pytestmark = [pytest.mark.boot, pytest.mark.long, pytest.mark.timeout(600)]

# What the guides print. The image has a Python 3.11 without pip, and no `python`.
INSTALLING = """
set -e
pip install -q by-pip
uv pip install -q --system by-uv
prefix=$(python -c 'import by_pip, by_uv, sys; print(sys.prefix)')
conda create -n x python=3.11 -y && conda activate x
pip install -q by-pip
python -c 'import by_pip, sys; print("installed", sys.argv[1], "conda", sys.prefix)' "$prefix"
conda deactivate
"""

# It saves for six seconds after SIGTERM.
SAVING = """
python3 - <<'END'
import os, pathlib, signal, sys, time

def save_and_end(*_):
    for number in range(1, 7):
        pathlib.Path(f"/ckpt/save{number}").write_text("x" * 1000)
        print(f"saved {number}", flush=True)
        time.sleep(1)
    sys.exit(0)

signal.signal(signal.SIGTERM, save_and_end)
print("umask", oct(os.umask(0o022)), "cuda", os.environ.get("CUDA_HOME"), flush=True)
print("running", flush=True)
while True:
    pathlib.Path("/ckpt/beat").write_text(str(time.time()))
    time.sleep(1)
END
"""


def test_power_off__loses_no_save_of_the_grace_time(booted: BootedJobs, cloud: str) -> None:
    mounts = {"/ckpt": {"name": BUCKET, "store": "s3", "mode": "MOUNT_CACHED"}}
    job = booted.jobs.launch("saves", SAVING, file_mounts=mounts, setup=INSTALLING, envs=booted.index.environ)
    machine = booted.machine_of(job)
    booted.jobs.until_printed(job, "running")
    assert "installed /root/perdure-env conda /root/.conda/envs/x" in booted.jobs.controller.log(job)
    assert "umask 0o22 cuda /usr/local/cuda" in booted.jobs.controller.log(job)
    for unit in ("apt-daily.timer", "apt-daily-upgrade.timer", "unattended-upgrades.service"):
        assert machine.run("systemctl", "is-enabled", unit, check=False).strip() == "masked"
        assert machine.run("systemctl", "is-active", unit, check=False).strip() in ("inactive", "failed")
    assert "DPkg::Lock::Timeout" in machine.run("apt-config", "dump")

    # The agent is killed and comes back; the machine, the workload and the mount do not notice.
    workload = machine.run("pgrep", "-f", "save_and_end|/run.sh").split()
    agent = machine.run("systemctl", "show", "--value", "--property=MainPID", "perdure-agent").strip()
    assert agent != "0", "the agent is no unit"
    machine.run("kill", "-KILL", agent)

    def new_agent() -> str | None:
        pid = machine.run("systemctl", "show", "--value", "--property=MainPID", "perdure-agent").strip()
        return pid if pid not in ("0", agent) else None

    wait_until(new_agent, "the restart of the agent", 30)
    wait_until(lambda: machine.console.count("connected to the controller") >= 2, "its connection", 30)
    assert machine.run("pgrep", "-f", "save_and_end|/run.sh").split() == workload
    assert "/ckpt" in machine.run("findmnt", "--list", "--noheadings", "--output=TARGET")

    machine.press_power_button()
    wait_until(lambda: machine.record.is_gone, "the end of the machine", 60)
    log = booted.jobs.controller.log(job)
    assert [f"saved {number}" in log for number in range(1, 7)] == [True] * 6, log
    saved = sorted(key for key in keys_in(booted.s3, BUCKET) if key.startswith("save"))
    assert saved == [f"save{number}" for number in range(1, 7)]
    assert not list(machine.root.glob("ckpt/save*")), "a save went to the root disk"
    reasons = [one["reason"] for one in booted.jobs.controller.job(job)["attempts"]]
    assert reasons[0] == "PREEMPTION_NOTICE", reasons
