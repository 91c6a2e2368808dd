"""One job on three fake clouds, one after another; their machines really run.

Its training state is in one bucket. AWS takes its machine with a notice and Google without one, and neither has
capacity again, so that the job ends on Azure.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support.worlds.jobs_on_clouds import keys_in, running_jobs_on_clouds
from support.worlds.migrating_job import MigratingJob

PLACES = {"aws": "c6a.large", "gcp": "n2-standard-2", "azure": "Standard_F2s_v2"}
EVERYWHERE = {
    "aws": {"us-east-1": "abcdef", "us-west-2": "abcd"},
    "gcp": {"us-central1-": "abcf", "us-east4-": "abc"},
}


@pytest.mark.long
@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_job__moves_across_three_clouds_and_loses_nothing(tmp_path: Path) -> None:
    with running_jobs_on_clouds(tmp_path, "aws", "gcp", "azure") as three:
        ec2, gce, azure = (three.fakes[name] for name in PLACES)
        wanderer = MigratingJob(three.controller, "wanderer-checkpoints", partial(keys_in, ec2.s3))
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
        gce.interrupt(gce.living()[0].id, is_announced=False)
        shown = wanderer.finished(job)

        assert [one.instance_type for fake in (ec2, gce, azure) for one in fake.purchases()] == list(PLACES.values())
        wanderer.check_log(job, shown["task_id"], durable=(first, second), notices=1)
        assert shown["recovery_count"] == 2
        noticed = [event for event in shown["timeline"] if event["kind"] == "node.notice"]
        assert len(noticed) == 1, "Amazon gave notice, Google did not"
        three.check_cost_matches_bill(job, within_s=20)


def _no_room(cloud: str) -> dict[str, int]:
    """No zone has capacity for another machine."""
    return {region + message: 0 for region, messages in EVERYWHERE[cloud].items() for message in messages}
