"""A recorded spot market on the local cloud: real machines come and go as the trace says, and a deadline is met."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from perdure.recovery.simulate import Scenario
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.world import World
from support.helpers.controllers import ROOT, Controller, running_controller

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
    """The job after its end."""
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


def test_deadline__is_met_through_preemptions(job: dict[str, Any], controller: Controller) -> None:
    story = controller.perdure("jobs", "show", job["job_id"]).stdout
    assert job["status"] == "SUCCEEDED", story
    assert job["total_duration_s"] < DEADLINE_H * 3600, story
    assert job["recovery_count"] > 0, story
    assert controller.log(job["job_id"]).count("done\n") == 1


def test_machines__come_and_go_as_the_trace_says(job: dict[str, Any], home: Path) -> None:
    """Compared with a tolerance of half a minute of simulated time, since a busy computer reacts late."""
    zones = {zone.zone: zone for zone in load(PATHS, unavailable_is=1)}
    begun = Scenario(tuple(zones.values()), 3600).span[0] + START_H * 3600 - played_since(home)
    for attempt in purchases(job):
        zone, at = zones[attempt["zone"]], datetime.fromisoformat(attempt["requested_at"]).timestamp() + begun
        if attempt["market"] == "spot":
            assert any(zone.has_capacity(1, at + late_s) for late_s in (0, zone.gap_s)), attempt
        if attempt["reason"] == "PREEMPTED":
            lost_at = datetime.fromisoformat(attempt["gone_at"]).timestamp() + begun
            assert zone.next_change(1, at) - 1 <= lost_at < zone.next_change(1, at) + 30 * SPEED, attempt


def test_decisions__match_the_simulator(job: dict[str, Any], home: Path) -> None:
    """The launches that the simulator decides on, in order, if machines start as fast as these did."""
    starts_s = [
        datetime.fromisoformat(a["running_at"]).timestamp() - datetime.fromisoformat(a["requested_at"]).timestamp()
        for a in purchases(job)
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
    assert [(a["zone"], a["market"]) for a in purchases(job)] == simulated
    assert job["cost_usd"] == pytest.approx(run.cost, rel=0.25)


def played_since(home: Path) -> float:
    """The time of the controller's clock at which the traces began."""
    with sqlite3.connect(home / "perdure.db") as database:
        ((time_scale,),) = database.execute("SELECT value FROM meta WHERE name = 'time_scale'").fetchall()
    return float(time_scale.partition(" since ")[2])


def purchases(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts whose launch was not refused."""
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


def test_unspecified_work__is_estimated_from_reported_steps(controller: Controller, tmp_path: Path) -> None:
    """Runs on demand until the remaining work is known, then on spot."""
    task = tmp_path / "task.yaml"
    task.write_text(UNSAID)
    output = controller.perdure("jobs", "launch", str(task), "--detach-run", "--yes")
    assert "the amount of work is unknown" in output.stdout + output.stderr
    job_id = int(re.findall(r"Job (\d+)", output.stdout)[0])
    done = controller.until(lambda: ended(controller, job_id), "the job's end")
    assert done["status"] == "SUCCEEDED", controller.perdure("jobs", "show", job_id).stdout
    assert [attempt["market"] for attempt in purchases(done)][:2] == ["on-demand", "spot"]
    (reported,) = [entry for entry in done["timeline"] if entry["kind"] == "task.work_estimated"]
    assert reported["data"]["work_s"] == pytest.approx(40 * SPEED, rel=0.5)
