"""One job on three clouds, one after another: clouds of the tests' own, whose machines really run.

What it trains lies in one bucket. Amazon takes its machine with a notice and Google without one, and neither has room
again, so that it ends on Azure.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fake_ec2 import FakeEc2
from on_clouds import OnClouds, keys_in, last_step, on_clouds

BUCKET = "wanderer-checkpoints"
PLACES = {"aws": "c6a.large", "gcp": "n2-standard-2", "azure": "Standard_F2s_v2"}
EVERYWHERE = {
    "aws": {"us-east-1": "abcdef", "us-west-2": "abcd"},
    "gcp": {"us-central1-": "abcf", "us-east4-": "abc"},
}

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


@pytest.mark.long
@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_a_job_moves_from_cloud_to_cloud_and_loses_nothing(tmp_path: Path) -> None:
    with on_clouds(tmp_path, "aws", "gcp", "azure") as three:
        ec2, gce, azure = (three.fakes[name] for name in PLACES)
        job = three.launch(
            "wanderer",
            WORK,
            envs={"LEGS": "3"},
            resources={
                "use_spot": True,
                "ordered": [{"infra": cloud, "instance_type": kind} for cloud, kind in PLACES.items()],
            },
            file_mounts={"/ckpt": {"name": BUCKET, "store": "s3", "mode": "MOUNT_CACHED"}},
        )

        first = _begun(three, ec2, job, leg=1)
        ec2.faults.capacity = _no_room("aws")
        ec2.faults.fis_notice_s = 30.0
        three.controller.holdfast("jobs", "preempt", job)
        second = _begun(three, ec2, job, leg=2)
        assert not ec2.living(), "one workload at a time"
        gce.faults.capacity = _no_room("gcp")
        gce.interrupt(gce.living()[0].id, is_told=False)
        shown = three.until(job, "SUCCEEDED")

        assert [one.instance_type for fake in (ec2, gce, azure) for one in fake.bought()] == list(PLACES.values())
        log = three.controller.log(job)
        _is_one_piece(log, shown["task_id"], durable=(first, second))
        assert shown["recovery_count"] == 2
        noticed = [event for event in shown["timeline"] if event["kind"] == "node.notice"]
        assert len(noticed) == 1, "Amazon gave notice, Google did not"
        three.cost_is_the_bill(job, within_s=20)


def _no_room(cloud: str) -> dict[str, int]:
    """No zone takes one machine more."""
    return {region + letter: 0 for region, letters in EVERYWHERE[cloud].items() for letter in letters}


def _begun(three: OnClouds, ec2: FakeEc2, job: int, *, leg: int) -> int:
    """The step that the bucket has when this leg has added two to it."""
    three.until_printed(job, f"leg {leg} begins")
    begun = int(re.findall(rf"leg {leg} begins after (\d+) ", three.controller.log(job))[0])

    def added() -> int:
        keys = keys_in(ec2.s3, BUCKET)
        return last_step(keys) if f"leg-{leg}" in keys and last_step(keys) >= begun + 2 else 0

    return int(three.controller.until(added, f"two steps of leg {leg} in the bucket"))


def _is_one_piece(log: str, task_id: str, *, durable: tuple[int, int]) -> None:
    """Three legs under one name; each goes on from at least what was in the bucket when the one before was lost."""
    begun = re.findall(r"leg (\d) begins after (\d+) on \S+ as (\S+)", log)
    assert [leg for leg, _, _ in begun] == ["1", "2", "3"], log
    assert {named for _, _, named in begun} == {task_id}
    starts = [int(step) for _, step, _ in begun]
    assert starts[0] == 0
    assert starts[1] >= durable[0]
    assert starts[2] >= durable[1]
    told = int(re.findall(r"told to stop after (\d+)", log)[0])
    assert starts[1] == told, "with notice, nothing is lost"
    assert log.count("told to stop") == 1, log
    printed = [
        [int(step) for step in re.findall(r"^.*?step (\d+)$", leg, re.MULTILINE)] for leg in log.split(" begins ")[1:]
    ]
    for start, steps in zip(starts, printed, strict=True):
        assert steps, "every leg worked"
        assert steps == list(range(start + 1, start + 1 + len(steps))), "no line is missing, none is there twice"
