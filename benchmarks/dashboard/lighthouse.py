"""What Lighthouse says of the dashboard's pages: accessibility, best practices, and how far things move while loading.

    npm install --prefix DIR lighthouse
    python -m benchmarks.dashboard.lighthouse --lighthouse DIR

A job is preempted once and runs again, so that its page is full. Lighthouse drives a browser that is signed in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import print_machine
from benchmarks.scale.queue import perdure_home, running_daemon
from playwright.sync_api import sync_playwright

import perdure.sdk as perdure
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client

PAGES = ("/jobs", "/jobs/1", "/jobs/1?tab=timeline", "/launch", "/market", "/savings", "/nodes", "/controllers")
CATEGORIES = ("accessibility", "best-practices")
MIN_SCORE, MAX_SHIFT = 100.0, 0.02
_SHIFT = "cumulative-layout-shift"
_START_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lighthouse", type=Path, required=True, help="the folder in which npm has installed it")
    folder = parser.parse_args().lighthouse.absolute()
    program = folder / "node_modules/.bin/lighthouse"
    if not program.exists():
        raise SystemExit(f"{program} does not exist: npm install --prefix {folder} lighthouse")
    print_machine()
    with perdure_home(None, None), running_daemon():
        full_job()
        with signed_in_chromium() as port:
            figures = [figure for page in PAGES for figure in audited(program, port, page)]
    report(figures)
    return exit_code(figures)


def full_job() -> None:
    """A job that was preempted once and runs again."""
    client = Client(discovery.ensure())
    task = perdure.Task(
        name="trains",
        run="for i in $(seq 100000); do echo step $i; sleep 0.1; done",
        resources=perdure.Resources(use_spot=True, infra="local"),
    )
    job_id = perdure.jobs.launch(task, client=client).job_id
    for recoveries in (0, 1):
        while (job := client.job(job_id))["status"] != "RUNNING" or job["recovery_count"] < recoveries:
            time.sleep(0.1)
        if not recoveries:
            client.preempt(job_id)


@contextmanager
def signed_in_chromium() -> Iterator[int]:
    """The port at which a browser can be driven that is signed in to the controller."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed: run scripts/ensure-chromium.sh")
    client = Client(discovery.ensure())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        browser = subprocess.Popen([program, *options], stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(profile) / "DevToolsActivePort")
            with sync_playwright() as tool:
                driven = tool.chromium.connect_over_cdp(f"http://127.0.0.1:{port}")
                page = driven.contexts[0].new_page()
                page.goto(f"{client.endpoint.url}/#login={client.create_sign_in_code()['code']}", wait_until="commit")
                page.get_by_role("heading", name="Jobs", exact=True).wait_for(timeout=60_000)
                page.close()
                driven.close()
            yield port
        finally:
            browser.terminate()
            browser.wait()


def _port(file: Path) -> int:
    give_up_at = time.monotonic() + _START_S
    while time.monotonic() < give_up_at:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.1)
    raise SystemExit("chromium did not start")


def audited(program: Path, port: int, page: str) -> list[Figure]:
    """What Lighthouse measures of one page. Prints what it finds wrong."""
    only = [*CATEGORIES, "performance"]
    words = [program, discovery.ensure().url + page, f"--port={port}", "--disable-storage-reset", "--output=json"]
    words += ["--quiet", "--preset=desktop", f"--only-categories={','.join(only)}"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"lighthouse failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    for category in CATEGORIES:
        for one in result["categories"][category]["auditRefs"]:
            audit = result["audits"][one["id"]]
            if one["weight"] and audit["score"] is not None and audit["score"] < 1:
                print(f"{page}: {audit['id']}: {audit['title']}", file=sys.stderr)
    scores = [
        Figure(f"{page}: {name}", 100 * float(result["categories"][name]["score"]), "", -MIN_SCORE)
        for name in CATEGORIES
    ]
    return [*scores, Figure(f"{page}: layout shift", float(result["audits"][_SHIFT]["numericValue"]), "", MAX_SHIFT)]


if __name__ == "__main__":
    sys.exit(main())
