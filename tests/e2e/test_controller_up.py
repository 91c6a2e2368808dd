"""`perdure controller up|upgrade|down` on a machine of the local cloud."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.local import layout
from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.discovery import recorded_pid
from support.helpers.hosted_controllers import Laptop
from support.helpers.timing import scaled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a machine that starts others needs namespaces of root's"),
]

COUNTING = """
name: counting
run: |
  i=0; until [ -e "$HOME/enough" ] || [ $i -ge 3000 ]; do i=$((i+1)); echo "step $i"; sleep 0.1; done; echo "made it"
"""


class WithMachines(Laptop):
    """A laptop whose controller's machine and job machines belong to the local cloud here."""

    def machines(self) -> dict[str, dict[str, Any]]:
        """The `state.json` of each live machine, by ID."""
        states = {
            path.parent.name: json.loads(path.read_text())
            for path in self.home.glob("local/instances/[!.]*/state.json")
        }
        return {id: state for id, state in states.items() if state["state"] != layout.ENDED}

    def others(self) -> list[str]:
        return [id for id in self.machines() if id != self.record.instance]

    def launch(self, tmp_path: Path) -> int:
        """Launch a job that counts until its machine has the file `enough`; return when it runs."""
        (tmp_path / "task.yaml").write_text(COUNTING)
        self.perdure("jobs", "launch", "-y", "-d", tmp_path / "task.yaml")
        job = int(self.client.jobs()["jobs"][0]["job_id"])
        self.until(lambda: "step 3" in self.log(job), "the job's third step")
        return job

    def finish(self, job: int) -> dict[str, Any]:
        (machine,) = self.others()
        pid = self.machines()[machine]["pid"]
        (Path(f"/proc/{pid}/root") / layout.NODE_HOME.lstrip("/") / "enough").touch()
        self.until(lambda: self.job(job)["status"] == "SUCCEEDED", "the job's end")
        return self.job(job)

    def starting(self) -> subprocess.Popen[bytes]:
        """Start `up` in its own process group, as a terminal does."""
        return subprocess.Popen(
            [*self.program, "controller", "up", "--infra", "local", "-y"],
            env={**os.environ, "PERDURE_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[WithMachines]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("local: {accelerators: {V100: 1}}\nnodes: {heartbeat_interval_s: 1}\n")
    one = WithMachines(home)
    yield one
    if hosted_controller.serving_endpoint(home) is not None:
        with contextlib.suppress(AssertionError):
            one.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful")
            one.until(lambda: not one.others(), "the end of every job's machine")
    one.perdure("controller", "down", "--force", "--yes")
    assert not one.machines()


def test_job__survives_the_launching_computer_an_upgrade_and_the_loss_of_the_host(
    laptop: WithMachines, tmp_path: Path
) -> None:
    laptop.perdure("controller", "start")
    output = laptop.perdure("controller", "up", "--infra", "local", "-y").stdout
    assert "every command on this computer now uses it" in output
    assert "had no unfinished jobs and was stopped" in output
    laptop.until(lambda: recorded_pid(laptop.home) is None, "the end of the one on this computer")
    assert "already runs" in laptop.perdure("controller", "up", "--infra", "local", "-y").stdout
    assert list(laptop.machines()) == [laptop.record.instance]
    following = subprocess.Popen(
        [*laptop.program, "jobs", "launch", "-y", "-n", "followed", "echo followed; sleep 600"],
        env={**os.environ, "PERDURE_HOME": str(laptop.home)},
        stdout=subprocess.DEVNULL,
    )
    laptop.until(laptop.others, "the first job's machine")
    following.kill()
    following.wait()
    first = int(laptop.client.jobs()["jobs"][0]["job_id"])
    laptop.until(lambda: "followed" in laptop.log(first), "the log to grow without the command that launched it")
    laptop.perdure("jobs", "cancel", "-y", first)
    laptop.until(lambda: not laptop.others(), "the end of the first job's machine")
    job = laptop.launch(tmp_path)

    before = laptop.client.controller()
    (laptop.home / "config.yaml").write_text("local: {accelerators: {V100: 2}}\nnodes: {heartbeat_interval_s: 1}\n")
    assert "Installed" in laptop.perdure("controller", "upgrade").stdout
    after = laptop.client.controller()
    assert (after["id"], after["started_at"] != before["started_at"]) == (before["id"], True)
    assert "already" in laptop.perdure("controller", "upgrade").stdout
    refused = laptop.perdure("controller", "down", "-y", check=False)
    assert (refused.returncode, "has unfinished jobs: 1 RUNNING" in refused.stderr) == (1, True)

    lost = laptop.record.instance
    directory = laptop.home / "local" / "instances" / lost
    layout.write_command(str(directory), layout.INTERRUPT, {"notice_s": None})
    laptop.until(lambda: lost not in laptop.machines(), "the loss of the controller's machine")
    for word in ("status", "start"):
        assert "to recover it with its state" in laptop.perdure("controller", word, check=False).stderr
    refused = laptop.perdure("controller", "down", "-y", check=False)
    assert (refused.returncode, "add --force" in refused.stderr) == (1, True)
    assert "is gone; a new one gets its disk" in laptop.perdure("controller", "up", "--infra", "local", "-y").stdout
    assert laptop.client.controller()["id"] == before["id"]

    ended = laptop.finish(job)
    assert [attempt["generation"] for attempt in ended["attempts"]] == [1], "nothing of that restarted it"
    assert "step 1\n" in laptop.log(job)
    assert laptop.log(job).count("step 1\n") == 1
    output = laptop.perdure("controller", "down", "-y").stdout
    assert f"Its disk {laptop.record.disk}" in output
    assert not laptop.machines()
    assert (Path(laptop.record.disk) / "perdure.db").exists()


def test_interrupted_up__leaves_nothing_and_can_be_repeated(laptop: WithMachines) -> None:
    killed = laptop.starting()
    laptop.until(laptop.machines, "a machine")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    first = list(laptop.machines())
    stopped = laptop.starting()
    laptop.until(lambda: laptop.record.instance in {*laptop.machines()} - {*first}, "a second machine")
    os.killpg(stopped.pid, signal.SIGINT)
    out, _ = stopped.communicate(timeout=scaled(60))
    assert stopped.returncode != 0, out.decode()
    assert b"Nothing is left running" in out
    assert not laptop.machines()
    laptop.perdure("controller", "up", "--infra", "local", "-y")
    assert list(laptop.machines()) == [laptop.record.instance]
    assert len(list((laptop.home / "controllers").iterdir())) == 1
    output = laptop.perdure("controller", "down", "-y", "--delete-disk").stdout
    assert "Nothing of it is left" in output
    assert not list((laptop.home / "controllers").iterdir())
    assert "No controller is up" in laptop.perdure("controller", "down").stdout


def test_failed_upgrade__changes_nothing(laptop: WithMachines) -> None:
    laptop.perdure("controller", "up", "--infra", "local", "-y")
    before = laptop.client.controller()
    for junk in (b"", b"no zip", sys.executable.encode() * 1000):
        with pytest.raises(Exception, match="not a Perdure bundle"):
            laptop.client.put_software(junk)
    assert laptop.client.controller() == before
