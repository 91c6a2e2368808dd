"""A job that loses two machines, and what must be true of it then: on clouds of the tests' own, and on a real one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controllers import PATIENCE_S, Controller
from on_clouds import UNDER_WAY, last_step

LEGS = 3

# One step after another, from what the bucket has; three more and an end where it begins for the LEGS-th time.
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
class Wanderer:
    """`keys`: what a bucket holds. `patience_s`: for anything that takes machines. `check`: raises what is to end the
    wait at once. `store`: the bucket's."""

    controller: Controller
    bucket: str
    keys: Callable[[str], list[str]]
    patience_s: float = PATIENCE_S
    check: Callable[[], None] = lambda: None
    store: str = "s3"

    def launch(self, **resources: Any) -> int:
        task = {
            "name": "wanderer",
            "run": WORK,
            "envs": {"LEGS": str(LEGS)},
            "resources": {"use_spot": True, **resources},
            "file_mounts": {"/ckpt": {"name": self.bucket, "store": self.store, "mode": "MOUNT_CACHED"}},
        }
        return int(self.controller.client.submit("wanderer", [task], user="", key=self.bucket)["job_id"])

    def begun(self, job: int, leg: int) -> int:
        """The step that the bucket has when this leg has added two to it."""
        begins = re.compile(rf"leg {leg} begins after (\d+) ")
        found = self._until(lambda: begins.search(self.controller.log(job)), f"leg {leg}")

        def added() -> int:
            keys = self.keys(self.bucket)
            return last_step(keys) if f"leg-{leg}" in keys and last_step(keys) >= int(found[1]) + 2 else 0

        return int(self._until(added, f"two steps of leg {leg} in the bucket"))

    def finished(self, job: int) -> dict[str, Any]:
        self._until(lambda: self.controller.job(job)["status"] not in UNDER_WAY, f"the end of job {job}")
        shown = self.controller.job(job)
        assert shown["status"] == "SUCCEEDED", shown
        return shown

    def is_one_piece(self, job: int, task_id: str, *, durable: tuple[int, ...], notices: int) -> None:
        """All legs under one name; each goes on from at least what was in the bucket when the one before was lost.

        `notices`: how many of the first legs were lost with one: of those, nothing is lost.
        """
        log = self.controller.log(job)
        begun = re.findall(r"leg (\d) begins after (\d+) on \S+ as (\S+)", log)
        assert [int(leg) for leg, _, _ in begun] == [*range(1, LEGS + 1)], log
        assert {named for _, _, named in begun} == {task_id}
        starts = [int(step) for _, step, _ in begun]
        assert starts[0] == 0
        assert all(start >= step for start, step in zip(starts[1:], durable, strict=True)), (starts, durable)
        told = [int(step) for step in re.findall(r"told to stop after (\d+)", log)]
        assert told == starts[1 : 1 + notices], "with notice, nothing is lost"
        for start, leg in zip(starts, log.split(" begins ")[1:], strict=True):
            steps = [int(step) for step in re.findall(r"^.*?step (\d+)$", leg, re.MULTILINE)]
            assert steps, "every leg worked"
            assert steps == [*range(start + 1, start + 1 + len(steps))], "no line is missing, none is there twice"

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        def met() -> Any:
            self.check()
            return condition()

        return self.controller.until(met, what, self.patience_s)
