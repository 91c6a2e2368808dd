"""What the demo prints: commands, the job's timeline and its log, in the order in which they arrive."""

from __future__ import annotations

import re
import sys
import threading
import time
from datetime import datetime

from perdure.sdk.connection import api_types

LOG_EVERY_STEPS = 100
COLOURS = {"command": "1;36", "event": "33", "log": "0", "good": "32", "dim": "2"}


class DemoOutput:
    """Prints, and collects what `check` needs: the log's lines, the steps reached, and the steps repeated by each
    machine."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines: list[str] = []
        self.task_ids: set[str] = set()
        self.last_step = 0
        self.repeated: list[int] = []
        self._printed_events = 0
        self._lock = threading.Lock()
        self._colour = sys.stdout.isatty()

    def print_command(self, command: str) -> None:
        self._print("command", f"$ {command}")

    def add_log_line(self, line: str) -> None:
        """Add one line of the job's log. Only some of the steps are printed; all are collected."""
        line = line.rstrip("\n")
        self.lines.append(line)
        if match := re.search(r"\btask (sky-managed-\S+)", line):
            self.task_ids.add(match[1])
        if match := re.search(r"\bresumed from step (\d+)", line):
            self.repeated.append(self.last_step - int(match[1]))
            self.last_step = int(match[1])
        elif match := re.search(r"\b(?:saved )?step (\d+)", line):
            self.last_step = int(match[1])
            if " loss " in line and "done:" not in line and self.last_step % LOG_EVERY_STEPS:
                return
        self._print("log", "    " + line)

    def print_new_events(self, job: api_types.JobDetail) -> None:
        """Print the entries of the job's timeline that were not printed yet."""
        timeline = job["timeline"]
        for entry in timeline[self._printed_events :]:
            self._print("event", "  ● " + sentence(entry))
        self._printed_events = len(timeline)

    def print_machines(self, job: api_types.JobDetail) -> None:
        """Print a table of the job's machines: when each was requested, ran and ended, and why it ended."""
        print(f"\n{'':2}{'#':<3}{'zone':<16}{'instance':<18}{'requested':>10}{'running':>10}{'gone':>10}   reason")
        zero = moment(job["submitted_at"])
        for attempt in job["attempts"]:
            times = [attempt["requested_at"], attempt["running_at"], attempt["gone_at"]]
            shown = "".join(f"{moment(at) - zero:>8.1f} s" if at else f"{'-':>10}" for at in times)
            place = f"{attempt['zone']:<16}{attempt['instance_type']:<18}"
            print(f"{'':2}{attempt['generation']:<3}{place}{shown}   {attempt['reason'] or ''}")

    def print_findings(self, findings: list[str]) -> None:
        print()
        for finding in findings:
            print("  " + self._painted("good", "✓") + " " + finding)

    def _print(self, kind: str, text: str) -> None:
        with self._lock:
            print(f"{self._painted('dim', f'{time.monotonic() - self.began:6.1f} s')}  {self._painted(kind, text)}")
            sys.stdout.flush()

    def _painted(self, kind: str, text: str) -> str:
        return f"\033[{COLOURS[kind]}m{text}\033[0m" if self._colour else text


def sentence(entry: api_types.TimelineEntry) -> str:
    """One line of a timeline: the event, its attempt, and its details."""
    which = f" #{entry['generation']}" if entry["generation"] else ""
    data = entry["data"]
    step = f"step {data['step']}" if "step" in data else ""
    details = entry["message"] or data.get("offer") or step
    reason = f" [{entry['reason']}]" if entry["reason"] else ""
    return f"{entry['kind']}{which}" + (f": {details}" if details else "") + reason


def moment(text: str) -> float:
    """Epoch seconds of an API time."""
    return datetime.fromisoformat(text).timestamp()
