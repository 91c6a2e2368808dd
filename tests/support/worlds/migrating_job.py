"""A job that loses two machines, and what must be true then; used on fake clouds and on real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from support.helpers.controllers import TIMEOUT_S, Controller
from support.worlds.jobs_on_clouds import UNFINISHED, last_step

LEGS = 3
Value = TypeVar("Value")

# Resumes from the newest step in the bucket. The last of LEGS runs ends after three more steps.
WORK = """
step=$(ls /ckpt | sed -n 's/^step-0*//p' | sort -n | tail -1)
step=${step:-0}
leg=$(($(ls /ckpt | grep -c '^leg-') + 1))
touch /ckpt/leg-$leg
trap 'echo told to stop after $step; exit 1' TERM
echo leg $leg begins after $step on $(hostname) as $SKYPILOT_TASK_ID
left=3
until [ "$leg" -ge "$LEGS" ] && [ "$left" = 0 ]; do
  step=$((step + 1)) left=$((left - 1))
  echo $SKYPILOT_TASK_ID > $(printf /ckpt/step-%04d $step)
  echo step $step
  sleep 0.3
done
"""


@dataclass(frozen=True)
class MigratingJob:
    """`keys`: lists a bucket. `timeout_s`: the limit of a wait for machines. `check`: raises to end a wait at once.
    `store`: the kind of the bucket. `at`: where it is mounted."""

    controller: Controller
    bucket: str
    keys: Callable[[str], list[str]]
    timeout_s: float = TIMEOUT_S
    check: Callable[[], None] = lambda: None
    store: str = "s3"
    at: str = "/ckpt"

    def launch(self, **resources: Any) -> int:
        task = {
            "name": "wanderer",
            "run": WORK.replace("/ckpt", self.at),
            "envs": {"LEGS": str(LEGS)},
            "resources": {"use_spot": True, **resources},
            "file_mounts": {self.at: {"name": self.bucket, "store": self.store, "mode": "MOUNT_CACHED"}},
        }
        return int(self.controller.client.submit("wanderer", [task], user="", key=self.bucket)["job_id"])

    def begun(self, job: int, leg: int) -> int:
        """Wait until this leg has added two steps to the bucket; return the newest."""
        begins = re.compile(rf"leg {leg} begins after (\d+) ")
        found = self._until(lambda: begins.search(self.controller.log(job)), f"leg {leg}")

        def added() -> int:
            keys = self.keys(self.bucket)
            return last_step(keys) if f"leg-{leg}" in keys and last_step(keys) >= int(found[1]) + 2 else 0

        return self._until(added, f"two steps of leg {leg} in the bucket")

    def finished(self, job: int) -> dict[str, Any]:
        self._until(lambda: self.controller.job(job)["status"] not in UNFINISHED, f"the end of job {job}")
        shown = self.controller.job(job)
        assert shown["status"] == "SUCCEEDED", shown
        return shown

    def check_log(self, job: int, task_id: str, *, durable: tuple[int, ...], notices: int) -> None:
        """Check: all legs have one task ID, each resumes from what was durable when the previous one was lost.

        `notices`: how many of the first legs were lost with a notice: they lose nothing.
        """
        log = self.controller.log(job)
        begun = re.findall(r"leg (\d) begins after (\d+) on \S+ as (\S+)", log)
        assert [int(leg) for leg, _, _ in begun] == [*range(1, LEGS + 1)], log
        assert {named for _, _, named in begun} == {task_id}
        starts = [int(step) for _, step, _ in begun]
        assert starts[0] == 0
        assert all(start >= step for start, step in zip(starts[1:], durable, strict=True)), (starts, durable)
        reported = [int(step) for step in re.findall(r"told to stop after (\d+)", log)]
        assert reported == starts[1 : 1 + notices], "with notice, nothing is lost"
        for start, leg in zip(starts, log.split(" begins ")[1:], strict=True):
            steps = [int(step) for step in re.findall(r"^.*?step (\d+)$", leg, re.MULTILINE)]
            assert steps, "every leg worked"
            assert steps == [*range(start + 1, start + 1 + len(steps))], "no line is missing, none is there twice"

    def _until(self, condition: Callable[[], Value | None], what: str) -> Value:
        def met() -> Value | None:
            self.check()
            return condition()

        return self.controller.until(met, what, self.timeout_s)
