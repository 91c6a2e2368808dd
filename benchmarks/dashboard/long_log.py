"""A log of one GiB in a real browser on this machine: opened at its end, read in the middle, searched, scrolled.

    python -m benchmarks.dashboard.long_log [--lines 10000000]

A job runs and ends; its log is then lengthened, as a store of logs does it, and the controller starts anew. So the
first opening includes reading the whole log once. Times are those of a user: from the key to the text on the screen.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.dashboard.browser import frames_per_s, renderer_memory_mib, signed_in_browser
from benchmarks.latency import Figure, exit_code, report
from benchmarks.machine import print_machine
from benchmarks.scale.queue import cpu_s, daemon_pid, memory_mib, perdure_home, running_daemon
from playwright.sync_api import Page

import perdure.sdk as perdure
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.sdk.connection import discovery
from perdure.sdk.connection.client import Client

LINE_BYTES = 107
OPENS = 5
MIDDLE = 0.5
NEEDLE_AT = 0.2  # of the lines: the search goes upward from the end, through the rest
NEEDLE = "the only line with a needle"
MAX_OPEN_S, MAX_JUMP_S, MAX_SEARCH_S, MAX_TAB_MIB, MIN_FRAMES_PER_S = 1.0, 1.0, 2.0, 400.0, 50.0
_BATCH = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lines", type=int, default=10_000_000)
    words = parser.parse_args()
    print_machine()
    with perdure_home(None, None) as home:
        with running_daemon():
            job_id = ended_job()
        fill(home, job_id, words.lines)
        with running_daemon(), signed_in_browser() as context:
            figures = log_figures(context.new_page(), job_id, words.lines)
    report(figures)
    return exit_code(figures)


def ended_job() -> int:
    client = Client(discovery.ensure())
    task = perdure.Task(name="prints", run="true", resources=perdure.Resources(infra="local"))
    job_id = perdure.jobs.launch(task, client=client).job_id
    while client.job(job_id)["status"] != "SUCCEEDED":
        time.sleep(0.1)
    return job_id


def fill(home: Path, job_id: int, lines: int) -> None:
    """Lines of `LINE_BYTES`, each with its number, counted from 1 as the page counts: the headline is line 1."""
    logs, key = FileLogStore(home), (job_id, 0, 1)
    size = logs.size(key, 0)
    needle_at = round(lines * NEEDLE_AT)
    for first in range(2, lines, _BATCH):
        text = b"".join(line_of(n, n == needle_at) for n in range(first, min(lines, first + _BATCH)))
        for at in range(0, len(text), 2**16):
            size = logs.append(key, 0, size, text[at : at + 2**16])


def line_of(number: int, has_needle: bool) -> bytes:
    what = NEEDLE if has_needle else f"loss {1 / number:.9f} lr 0.000300 throughput 12345 tokens/s epoch 3 of 10"
    return f"line {number} {what}".ljust(LINE_BYTES - 1).encode() + b"\n"


def log_figures(page: Page, job_id: int, lines: int) -> list[Figure]:
    pid, url = daemon_pid(), f"{discovery.ensure().url}/jobs/{job_id}"
    before_mib, before_s = memory_mib(pid, "VmRSS"), cpu_s(pid)
    last = f"line {lines - 1} "

    def open_page() -> None:
        page.goto(url, wait_until="commit")
        wait_for_line(page, last)

    first_s = taken(open_page)
    index_cpu_s = cpu_s(pid) - before_s
    open_s = [taken(open_page) for _ in range(OPENS)]
    jump_s = [taken(lambda at=share: jump(page, round(lines * at))) for share in (MIDDLE, 0.1, 0.9, 0.3, 0.7)]  # type: ignore[misc]

    def find() -> None:
        page.get_by_label("Search the log").fill(NEEDLE)
        page.locator(".log mark").first.wait_for()

    page.get_by_role("button", name="Follow").click()
    search_s = taken(find)
    shown = page.locator(".line.current .number").inner_text()
    assert int(shown) == round(lines * NEEDLE_AT), f"the search shows line {shown}"
    page.get_by_label("Search the log").fill("")
    page.get_by_role("button", name="Follow").click()
    wait_for_line(page, last)
    frames = frames_per_s(page, ".log-lines", 3.0)
    return [
        Figure("first opening: the log is read once", first_s, "s", MAX_OPEN_S),
        Figure("… CPU of the daemon", index_cpu_s, "s", 2.0),
        Figure("opened at the end, p50", statistics.median(open_s), "s", MAX_OPEN_S),
        Figure(f"jump to line {round(lines * MIDDLE):,}", jump_s[0], "s", MAX_JUMP_S),
        Figure("jump, slowest of five", max(jump_s), "s", MAX_JUMP_S),
        Figure(f"search through {1 - NEEDLE_AT:.0%} of it → first hit", search_s, "s", MAX_SEARCH_S),
        Figure("scrolling", frames, "frames/s", -MIN_FRAMES_PER_S),
        Figure("memory of the tab", renderer_memory_mib(), "MiB", MAX_TAB_MIB),
        Figure("memory added to the daemon", memory_mib(pid, "VmRSS") - before_mib, "MiB", 60.0),
    ]


def jump(page: Page, number: int) -> None:
    box = page.get_by_label("Go to line")
    box.fill(str(number))
    box.press("Enter")
    wait_for_line(page, f"line {number} ")


def wait_for_line(page: Page, text: str) -> None:
    page.wait_for_function(
        "(text) => [...document.querySelectorAll('.line .text')].some((line) => line.textContent.startsWith(text))",
        arg=text,
    )


def taken(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
