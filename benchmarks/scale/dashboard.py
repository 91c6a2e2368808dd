"""What the dashboard costs among many jobs, and how soon it shows a preemption, in a real browser on this machine.

    python -m benchmarks.scale.dashboard [--past 1000000] [--waiting 10000] [--preemptions 20]

Fills a database as `benchmarks.scale.queue` does; `--home DIR` keeps it and reuses it. Times of the browser include its
own work; the daemon's CPU time does not depend on other work on this machine. A preemption is measured from the entry
in the job's timeline until the page shows its mark.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.dashboard.browser import signed_in_browser
from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import print_machine
from benchmarks.scale.queue import cpu_s, daemon_pid, perdure_home, prepare, running_daemon
from playwright.sync_api import BrowserContext

import perdure.sdk as perdure
from perdure.controller.api.dashboard.assets import load_assets
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client

OPENS = 20  # the clock of a process's CPU time ticks every 10 ms
IDLE_S = 10.0
SETTLE_S = 5.0
MAX_SCRIPT_KIB, MAX_PAGE_KIB, MAX_PAGE_MS, MAX_PAGE_CPU_MS, MAX_SHOWN_S = 60.0, 120.0, 800.0, 20.0, 1.0
CONFIG = "limits: {recoveries_per_hour: 1000}\n"  # the one job is preempted often
WORK = "while :; do sleep 1; done"
# Notes when the page shows another mark of a loss than those it shows now.
WATCH = """() => {
  const marks = () => document.querySelectorAll(".bar .mark.preempted").length;
  const before = marks();
  window.shownAt = null;
  window.watcher?.disconnect();  // that of the loss before would see any change as another mark
  window.watcher = new MutationObserver(() => {
    if (!window.shownAt && marks() > before) window.shownAt = Date.now() / 1000;
  });
  window.watcher.observe(document.body, {subtree: true, childList: true});
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--past", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--preemptions", type=int, default=20)
    parser.add_argument("--home", type=Path, help="where to keep everything; without it, a temporary folder")
    words = parser.parse_args()
    print_machine(words.home and words.home.parent)
    with perdure_home(words.home, None) as home:
        (home / "config.yaml").write_text(CONFIG)
        if not (home / "filled").exists():
            prepare(f"sqlite:///{home / 'perdure.db'}", past=words.past, waiting=words.waiting)
            (home / "filled").touch()
        with running_daemon(), signed_in_browser() as context:
            figures = [*page_figures(context), *preemption_figures(context, words.preemptions)]
    report(figures)
    return exit_code(figures)


def page_figures(context: BrowserContext) -> list[Figure]:
    """The list of jobs, opened several times, and how much it costs while it stays open and nothing happens.

    The CPU time of a page is without what the daemon uses anyway."""
    url, pid = discovery.ensure().url, daemon_pid()
    taken_ms, used_ms = [], []
    time.sleep(SETTLE_S)
    idle = idle_share(pid)
    for _ in range(OPENS):
        page = context.new_page()
        before_s, begun = cpu_s(pid), time.perf_counter()
        page.goto(f"{url}/jobs?status=all", wait_until="commit")
        page.locator("table.jobs tbody tr").nth(49).wait_for()
        taken_ms.append((time.perf_counter() - begun) * 1000)
        page.wait_for_timeout(500)  # until everything that belongs to the first page was requested
        used_ms.append((cpu_s(pid) - before_s - idle * (time.perf_counter() - begun)) * 1000)
        page.close()
    page = context.new_page()
    page.goto(f"{url}/jobs?status=all", wait_until="commit")
    page.locator("table.jobs tbody tr").nth(49).wait_for()
    page.wait_for_timeout(1000)
    before_s = cpu_s(pid)
    page.wait_for_timeout(IDLE_S * 1000)
    with_page_s = cpu_s(pid) - before_s
    page.close()
    sent = page_bytes(context)
    script = sum(len(one.compressed) for name, one in load_assets().items() if name.endswith(".js"))
    return [
        Figure("all scripts, compressed", script / 1024, "KiB", MAX_SCRIPT_KIB, 408.0, "its jobs page"),
        Figure("first page with 50 jobs, all bytes, cold", sent / 1024, "KiB", MAX_PAGE_KIB),
        Figure("first page with 50 jobs, p50", statistics.median(taken_ms), "ms", MAX_PAGE_MS),
        Figure("first page, daemon's CPU, mean", statistics.mean(used_ms), "ms", MAX_PAGE_CPU_MS),
        Figure("daemon while a page is open", 100 * with_page_s / IDLE_S, "%", 5.0),
    ]


def page_bytes(context: BrowserContext) -> float:
    """What is sent for the list of jobs to a browser that has nothing of it, with headers."""
    page = context.new_page()
    session, sizes = context.new_cdp_session(page), [0.0]
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(f"{discovery.ensure().url}/jobs?status=all", wait_until="commit")
    page.locator("table.jobs tbody tr").nth(49).wait_for()
    page.wait_for_timeout(1000)
    page.close()
    return sum(sizes)


def idle_share(pid: int) -> float:
    """The share of a core that the daemon uses without a page: it would be used while one opens, too."""
    before_s = cpu_s(pid)
    time.sleep(IDLE_S)
    return (cpu_s(pid) - before_s) / IDLE_S


def preemption_figures(context: BrowserContext, count: int) -> list[Figure]:
    """From the timeline entry of a loss without notice until the open page shows its mark."""
    client = Client(discovery.ensure())
    task = perdure.Task(name="preempted", run=WORK, resources=perdure.Resources(use_spot=True, infra="local"))
    job_id = perdure.jobs.launch(task, client=client).job_id
    wait_until_running(client, job_id, 0)
    page = context.new_page()
    page.goto(f"{client.endpoint.url}/jobs/{job_id}", wait_until="commit")
    page.locator(".live.on").wait_for()
    page.locator(".bar").first.wait_for()
    shown_s, called_s = [], []
    for number in range(1, count + 1):
        page.evaluate(WATCH)
        called_at = time.time()
        client.preempt(job_id)
        while (shown_at := page.evaluate("() => window.shownAt")) is None:
            page.wait_for_timeout(50)
        losses = [entry for entry in client.job(job_id)["timeline"] if entry["kind"] == "attempt.lost"]
        shown_s.append(shown_at - datetime.fromisoformat(losses[-1]["at"]).timestamp())
        called_s.append(shown_at - called_at)
        wait_until_running(client, job_id, number)
    client.cancel(ids=[job_id], graceful=False)
    p99_s = statistics.quantiles(shown_s, n=100)[98] if count > 1 else shown_s[0]
    return [
        Figure("preemption recorded → shown, p50", statistics.median(shown_s), "s", 0.5, 30.0, "its pages poll"),
        Figure("preemption recorded → shown, p99", p99_s, "s", MAX_SHOWN_S),
        Figure("preemption recorded → shown, slowest", max(shown_s), "s", MAX_SHOWN_S),
        Figure("machine killed → shown, p50", statistics.median(called_s), "s", 2.0),
    ]


def wait_until_running(client: Client, job_id: int, recoveries: int) -> None:
    while True:
        job: Any = client.job(job_id)
        if job["status"] == "RUNNING" and job["recovery_count"] >= recoveries:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
