"""How the demo tells what happens: commands, the job's timeline and its log, in the order in which they come."""

from __future__ import annotations

import re
import sys
import threading
import time
from datetime import datetime

from perdure.sdk import records

LOG_EVERY_STEPS = 100
COLOURS = {"does": "1;36", "event": "33", "log": "0", "good": "32", "dim": "2"}


class Story:
    """Prints, and remembers what `check` needs: the log's lines, the steps reached, and where each machine went on."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines: list[str] = []
        self.task_ids: set[str] = set()
        self.last_step = 0
        self.repeated: list[int] = []
        self._events_told = 0
        self._lock = threading.Lock()
        self._colour = sys.stdout.isatty()

    def does(self, command: str) -> None:
        self._tell("does", f"$ {command}")

    def log(self, line: str) -> None:
        """One line of the job's log. Steps are many: some of them are told, all are remembered."""
        line = line.rstrip("\n")
        self.lines.append(line)
        if found := re.search(r"\btask (sky-managed-\S+)", line):
            self.task_ids.add(found[1])
        if found := re.search(r"\bresumed from step (\d+)", line):
            self.repeated.append(self.last_step - int(found[1]))
            self.last_step = int(found[1])
        elif found := re.search(r"\b(?:saved )?step (\d+)", line):
            self.last_step = int(found[1])
            if " loss " in line and "done:" not in line and self.last_step % LOG_EVERY_STEPS:
                return
        self._tell("log", "    " + line)

    def events(self, job: records.JobDetail) -> None:
        """What is new in the job's timeline."""
        timeline = job["timeline"]
        for entry in timeline[self._events_told :]:
            self._tell("event", "  ● " + sentence(entry))
        self._events_told = len(timeline)

    def timeline(self, job: records.JobDetail) -> None:
        """The machines that the job had, each with how it came and went."""
        print(
            f"\n{'':2}{'#':<3}{'zone':<16}{'instance':<18}{'asked for':>10}{'running':>10}{'gone':>10}   why it ended"
        )
        zero = moment(job["submitted_at"])
        for attempt in job["attempts"]:
            times = [attempt["requested_at"], attempt["running_at"], attempt["gone_at"]]
            shown = "".join(f"{moment(at) - zero:>8.1f} s" if at else f"{'-':>10}" for at in times)
            place = f"{attempt['zone']:<16}{attempt['instance_type']:<18}"
            print(f"{'':2}{attempt['generation']:<3}{place}{shown}   {attempt['reason'] or ''}")

    def verdict(self, findings: list[str]) -> None:
        print()
        for finding in findings:
            print("  " + self._painted("good", "✓") + " " + finding)

    def _tell(self, kind: str, text: str) -> None:
        with self._lock:
            print(f"{self._painted('dim', f'{time.monotonic() - self.began:6.1f} s')}  {self._painted(kind, text)}")
            sys.stdout.flush()

    def _painted(self, kind: str, text: str) -> str:
        return f"\033[{COLOURS[kind]}m{text}\033[0m" if self._colour else text


def sentence(entry: records.TimelineEntry) -> str:
    """One line of a timeline: what, of which attempt, and what there is to say about it."""
    which = f" #{entry['generation']}" if entry["generation"] else ""
    data = entry["data"]
    step = f"step {data['step']}" if "step" in data else ""
    said = entry["message"] or data.get("offer") or step
    why = f" [{entry['reason']}]" if entry["reason"] else ""
    return f"{entry['kind']}{which}" + (f": {said}" if said else "") + why


def moment(text: str) -> float:
    """Epoch seconds of an API time."""
    return datetime.fromisoformat(text).timestamp()
