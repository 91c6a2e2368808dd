"""One job on a cloud's machine, then in a pod, then on this computer; each of them really runs.

Its training state is in one bucket: a mount on the machine, a folder that is uploaded in the unprivileged pod. Both
are taken with a notice, and have no room again.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from support.fakes.kube import FakeKube
from support.helpers.ports import unused_port
from support.worlds.jobs_on_clouds import keys_in, running_jobs_on_clouds
from support.worlds.migrating_job import MigratingJob


@pytest.mark.long
@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_job__moves_from_aws_to_kubernetes_to_this_computer_and_loses_nothing(tmp_path: Path) -> None:
    with FakeKube(tmp_path / "kube") as kube:
        kube.add_node("spot", labels={"karpenter.sh/capacity-type": "spot"})
        port = unused_port()
        kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
        config = f"listen: {{port: {port}}}\n{kube.config}"
        with running_jobs_on_clouds(tmp_path, "aws", config=config, environ=kube.environ) as one:
            ec2 = one.fakes["aws"]
            wanderer = MigratingJob(one.controller, "wanderer-in-pods", partial(keys_in, ec2.s3), at="ckpt")
            job = wanderer.launch(
                ordered=[
                    {"infra": "aws", "instance_type": "c6a.large"},
                    {"infra": "k8s", "cpus": 2},
                    {"infra": "local"},
                ]
            )
            first = wanderer.begun(job, 1)
            ec2.faults.capacity = {
                region + zone: 0
                for region, zones in {"us-east-1": "abcdef", "us-west-2": "abcd"}.items()
                for zone in zones
            }
            ec2.faults.fis_notice_s = 30.0
            one.controller.perdure("jobs", "preempt", job)
            second = wanderer.begun(job, 2)
            assert not ec2.living(), "one workload at a time"
            (pod,) = kube.pods()
            kube.faults.quota_pods = 0
            kube.evict(pod["metadata"]["name"], 30)
            shown = wanderer.finished(job)
            assert len(ec2.purchases()) == 1
            hosts = re.findall(r"leg \d begins after \d+ on (\S+)", one.controller.log(job))
            assert [host.startswith("pd-1-0-") for host in hosts] == [False, True, False]
            wanderer.check_log(job, shown["task_id"], durable=(first, second), notices=2)
            assert shown["recovery_count"] == 2
            one.controller.until(lambda: not kube.pods(), "the end of the pod")
