"""A recorded spot market on the local cloud: real machines come and go as the trace says, and a deadline is kept."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from controllers import ROOT, Controller, running_controller
from perdure.recovery.simulate import Scenario
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEED = 150
START_H, WORK_H, DEADLINE_H = 800, 4, 7.5
NAMES = ("us-east-1c", "us-east-1d", "us-east-2b")
PATHS = [ROOT / f"tests/data/traces/aws-v100/{name}.json.gz" for name in NAMES]

TASK = f"""
name: traced
resources:
  use_spot: true
  job_recovery: {{deadline: {DEADLINE_H}h, work: {WORK_H}h}}
file_mounts:
  /checkpoint: {{name: traced, mode: MOUNT_CACHED}}
run: |
  python3 - <<'END'
  import signal, sys, time
  from perdure.checkpoint import load_checkpoint, save_checkpoint

  @save_checkpoint(save_dir="/checkpoint", max_checkpoints=2)
  def save(step):
      open(f"/checkpoint/step_{{step}}.txt", "w").write(str(step))

  @load_checkpoint(save_dir="/checkpoint")
  def load(step):
      return step

  first = load() or 0
  print("from", first, flush=True)
  for step in range(first + 1, {WORK_H * 3600 // SPEED} + 1):
      time.sleep(1)
      save(step)
  print("done", flush=True)
  END
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    traces = ", ".join(map(str, PATHS))
    trace = f"{{paths: [{traces}], unavailable_is: 1, speed: {SPEED}, start: {START_H}h}}"
    (home / "config.yaml").write_text(f"local: {{capacity_trace: {trace}}}\n")
    return home


@pytest.fixture(scope="module")
def controller(home: Path) -> Iterator[Controller]:
    with running_controller(home) as one:
        yield one


@pytest.fixture(scope="module")
def job(controller: Controller, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The job, once it has ended."""
    task = tmp_path_factory.mktemp("task") / "task.yaml"
    task.write_text(TASK)
    submitted = controller.perdure("jobs", "launch", str(task), "--detach-run", "--yes").stdout
    job_id = int(re.findall(r"Job (\d+)", submitted)[0])
    for _ in range(4):
        try:
            return controller.until(lambda: ended(controller, job_id), "the job's end")
        except AssertionError as waiting:
            if "in vain" not in str(waiting):
                raise
    raise AssertionError(controller.perdure("jobs", "show", job_id).stdout)


def ended(controller: Controller, job_id: int) -> dict[str, Any] | None:
    job = controller.job(job_id)
    return job if job["status"] in ("SUCCEEDED", "FAILED") else None


def test_the_deadline_is_kept_through_preemptions(job: dict[str, Any], controller: Controller) -> None:
    story = controller.perdure("jobs", "show", job["job_id"]).stdout
    assert job["status"] == "SUCCEEDED", story
    assert job["total_duration_s"] < DEADLINE_H * 3600, story
    assert job["recovery_count"] > 0, story
    assert controller.log(job["job_id"]).count("done\n") == 1


def test_machines_are_had_and_lost_when_the_trace_says_so(job: dict[str, Any], home: Path) -> None:
    """Within half a minute of the world: a busy computer answers late."""
    zones = {zone.zone: zone for zone in load(PATHS, unavailable_is=1)}
    begun = Scenario(tuple(zones.values()), 3600).span[0] + START_H * 3600 - played_since(home)
    for attempt in bought(job):
        zone, at = zones[attempt["zone"]], datetime.fromisoformat(attempt["requested_at"]).timestamp() + begun
        if attempt["market"] == "spot":
            assert any(zone.has(1, at + late_s) for late_s in (0, zone.gap_s)), attempt
        if attempt["reason"] == "PREEMPTED":
            lost_at = datetime.fromisoformat(attempt["gone_at"]).timestamp() + begun
            assert zone.changes_at(1, at) - 1 <= lost_at < zone.changes_at(1, at) + 30 * SPEED, attempt


def test_it_decides_as_in_the_simulator(job: dict[str, Any], home: Path) -> None:
    """What was bought, in order, given machines that start as fast as these did."""
    starts_s = [
        datetime.fromisoformat(a["running_at"]).timestamp() - datetime.fromisoformat(a["requested_at"]).timestamp()
        for a in bought(job)
        if a["running_at"]
    ]
    if max(starts_s) > 2.5 * min(starts_s):
        pytest.skip(f"this computer is too busy: its machines took from {min(starts_s):.0f} to {max(starts_s):.0f} s")
    zones = load(PATHS, unavailable_is=1)
    start_s = round(mean(starts_s) / 60) * 60
    work_s, deadline_s = WORK_H * 3600, int(DEADLINE_H * 3600)
    scenario = Scenario(zones, work_s, deadline_s, cold_start_s=start_s, checkpoint_every_s=SPEED)
    waited_s = datetime.fromisoformat(job["submitted_at"]).timestamp() - played_since(home)
    run = World(TraceCloud(scenario), "DEADLINE", scenario.span[0] + START_H * 3600 + waited_s).run()
    simulated = [(zones[stay.zone].zone, stay.market.value) for stay in run.stays]
    assert [(a["zone"], a["market"]) for a in bought(job)] == simulated
    assert job["cost_usd"] == pytest.approx(run.cost, rel=0.25)


def played_since(home: Path) -> float:
    """When, by the controller's clock, the traces began to play."""
    with sqlite3.connect(home / "perdure.db") as database:
        ((pace,),) = database.execute("SELECT value FROM meta WHERE name = 'pace'").fetchall()
    return float(pace.partition(" since ")[2])


def bought(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts that were not refused."""
    return [attempt for attempt in job["attempts"] if attempt["cost_usd"]]


UNSAID = """
name: unsaid
resources:
  use_spot: true
  job_recovery: {deadline: 12h}
file_mounts:
  /checkpoint: {name: unsaid, mode: MOUNT_CACHED}
run: |
  python3 - <<'END'
  import time
  from perdure.checkpoint import Checkpointer

  with Checkpointer("/checkpoint", every=1, total_steps=40) as checkpoints:
      first = (checkpoints.load() or {"step": 0})["step"]
      for step in range(first + 1, 41):
          time.sleep(1)
          checkpoints.save(step, {"step": step})
  END
"""


def test_work_that_nobody_named_is_told_by_its_steps(controller: Controller, tmp_path: Path) -> None:
    """On-demand until it is known, then spot."""
    task = tmp_path / "task.yaml"
    task.write_text(UNSAID)
    said = controller.perdure("jobs", "launch", str(task), "--detach-run", "--yes")
    assert "nobody said how much work it is" in said.stdout + said.stderr
    job_id = int(re.findall(r"Job (\d+)", said.stdout)[0])
    done = controller.until(lambda: ended(controller, job_id), "the job's end")
    assert done["status"] == "SUCCEEDED", controller.perdure("jobs", "show", job_id).stdout
    assert [attempt["market"] for attempt in bought(done)][:2] == ["on-demand", "spot"]
    (told,) = [entry for entry in done["timeline"] if entry["kind"] == "task.work"]
    assert told["data"]["work_s"] == pytest.approx(40 * SPEED, rel=0.5)
