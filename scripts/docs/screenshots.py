"""Makes the pictures of the dashboard in docs/figures: `python -m scripts.docs.screenshots [log graphs …]`, all of them
or those that are named (about three minutes).

A controller with a home of its own runs what the pictures show: a job that trains on GPUs, whose tools are a stand-in,
and is preempted; a schedule; a sweep; and a service, if HAProxy is installed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs/figures"
STAND_INS = ROOT / "tests/e2e/dashboard/programs"
CONFIG = "local: {accelerators: {V100: 8}}\n"
TRAINS = """
name: gpt-small
resources: {accelerators: "V100:2", use_spot: true}
run: |
  python3 - <<'PY'
  import math, time
  from perdure.checkpoint import report_progress
  for step in range(100000):
      loss = 2 + 3 * math.exp(-step / 600)
      report_progress(step, loss=loss)
      print(f"step {step} loss {loss:.4f}", flush=True)
      time.sleep(0.1)
  PY
"""
NIGHTLY = "name: evaluate\nresources: {cpus: 1+}\nrun: sleep 5\n"
SWEEP = """
name: tune
sweep: {LR: [0.1, 0.01, 0.001], SEED: [1, 2]}
run: |
  [ $SEED = 1 ] || sleep 1000
  [ $LR != 0.1 ]
"""
SERVICE = f"""
name: model
envs: {{SERVER: {ROOT / "tests/support/helpers/tiny_model_server.py"}}}
resources: {{ports: 8080, cpus: 1}}
service: {{replicas: 2, readiness_probe: {{path: /v1/models, initial_delay_seconds: 20}}}}
run: exec python3 "$SERVER" 8080
"""
# The path of each, and what it shows last.
PICTURES = {
    "log": ("/jobs/1", ".log .line >> nth=3"),
    "graphs": ("/jobs/1?tab=graphs", "main .metric path.line >> nth=0"),
    "schedules": ("/schedules", "main tbody tr"),
    "sweep": ("/sweeps/2", "main tbody tr >> nth=5"),
    "services": ("/services/model", "main tbody tr:has-text('ready') >> nth=1"),
}
_TIMEOUT_S = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="PICTURE", help=f"default: {' '.join(PICTURES)}")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := sorted(set(names) - set(PICTURES)):
        parser.error(f"no such picture: {unknown[0]}; there are {', '.join(PICTURES)}")
    with tempfile.TemporaryDirectory(prefix="perdure-pictures-") as home:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        environ |= {"PERDURE_HOME": home, "PATH": f"{STAND_INS}:{os.environ['PATH']}"}
        (Path(home) / "config.yaml").write_text(CONFIG)
        try:
            take_pictures(Path(home), environ, names)
        finally:
            perdure(environ, "serve", "down", "--all", "--yes", check=False)
            perdure(environ, "jobs", "cancel", "--all", "--yes", "--no-graceful", check=False)
            Event().wait(3)
            perdure(environ, "controller", "stop", check=False)
    return 0


def perdure(environ: dict[str, str], *words: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "perdure.cli", *words]
    return subprocess.run(command, env=environ, check=check, capture_output=True, text=True).stdout


def take_pictures(home: Path, environ: dict[str, str], names: Sequence[str]) -> None:
    def run(name: str, text: str, *words: str) -> None:
        path = home / f"{name}.yaml"
        path.write_text(text)
        perdure(environ, *words, str(path))

    def job(job_id: int) -> dict[str, Any]:
        return dict(json.loads(perdure(environ, "jobs", "show", str(job_id), "-o", "json")))

    run("trains", TRAINS, "jobs", "launch", "-d", "-y")
    until(lambda: job(1)["status"] == "RUNNING", "the job runs")
    run("tune", SWEEP, "jobs", "launch", "-d", "-y")
    run("nightly", NIGHTLY, "jobs", "schedule", "set", "nightly", "0 3 * * *")
    if shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"):
        run("model", SERVICE, "serve", "up", "-n", "model", "-y")
    if {"log", "graphs"} & set(names):
        Event().wait(75)  # a machine reports once a minute
        perdure(environ, "jobs", "preempt", "1", "--kill")
        until(lambda: job(1)["recovery_count"] == 1 and job(1)["status"] == "RUNNING", "the job runs again")
        Event().wait(75)
    link = perdure(environ, "dashboard", "--no-browser").strip()
    program = shutil.which("chromium")
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=120_000)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1.5)
        page.goto(link, wait_until="commit")
        page.get_by_role("heading", name="Jobs", exact=True).wait_for()
        url = link.partition("/#")[0]
        for name in names:
            path, shown = PICTURES[name]
            page.goto(url + path, wait_until="commit")
            page.locator(shown).wait_for(timeout=_TIMEOUT_S * 1000)
            page.wait_for_timeout(4000)
            save(page, name)
        browser.close()


def save(page: Page, name: str) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.save(FIGURES / f"dashboard-{name}.webp", quality=80, method=6)


def until(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not within {_TIMEOUT_S:.0f} s: {what}")
        Event().wait(0.5)


if __name__ == "__main__":
    sys.exit(main())
