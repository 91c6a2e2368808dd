"""One job on three clouds, one after another: clouds of the tests' own, whose machines really run.

What it trains lies in one bucket. Amazon takes its machine with a notice and Google without one, and neither has room
again, so that it ends on Azure.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from on_clouds import keys_in, on_clouds
from wandering import Wanderer

PLACES = {"aws": "c6a.large", "gcp": "n2-standard-2", "azure": "Standard_F2s_v2"}
EVERYWHERE = {
    "aws": {"us-east-1": "abcdef", "us-west-2": "abcd"},
    "gcp": {"us-central1-": "abcf", "us-east4-": "abc"},
}


@pytest.mark.long
@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_a_job_moves_from_cloud_to_cloud_and_loses_nothing(tmp_path: Path) -> None:
    with on_clouds(tmp_path, "aws", "gcp", "azure") as three:
        ec2, gce, azure = (three.fakes[name] for name in PLACES)
        wanderer = Wanderer(three.controller, "wanderer-checkpoints", partial(keys_in, ec2.s3))
        job = wanderer.launch(
            ordered=[{"infra": cloud, "instance_type": kind} for cloud, kind in PLACES.items()],
        )

        first = wanderer.begun(job, 1)
        ec2.faults.capacity = _no_room("aws")
        ec2.faults.fis_notice_s = 30.0
        three.controller.perdure("jobs", "preempt", job)
        second = wanderer.begun(job, 2)
        assert not ec2.living(), "one workload at a time"
        gce.faults.capacity = _no_room("gcp")
        gce.interrupt(gce.living()[0].id, is_told=False)
        shown = wanderer.finished(job)

        assert [one.instance_type for fake in (ec2, gce, azure) for one in fake.bought()] == list(PLACES.values())
        wanderer.is_one_piece(job, shown["task_id"], durable=(first, second), notices=1)
        assert shown["recovery_count"] == 2
        noticed = [event for event in shown["timeline"] if event["kind"] == "node.notice"]
        assert len(noticed) == 1, "Amazon gave notice, Google did not"
        three.cost_is_the_bill(job, within_s=20)


def _no_room(cloud: str) -> dict[str, int]:
    """No zone takes one machine more."""
    return {region + letter: 0 for region, letters in EVERYWHERE[cloud].items() for letter in letters}
