"""A job that several clusters could run asks one of them at a time for a node."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml

from support.fakes.kube import FakeKube
from support.fakes.kube.clusters import join_kubeconfigs
from support.helpers.controllers import running_controller
from support.helpers.ports import unused_port

pytestmark = pytest.mark.slow


def test_job__never_wakes_two_autoscalers_at_once(tmp_path: Path) -> None:
    """Each cluster could grow, and none does: the job goes from one to the next, and leaves no pod behind."""
    home, port, kubeconfig = tmp_path / "home", unused_port(), tmp_path / "kubeconfig"
    home.mkdir()
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(FakeKube(context=name)) for name in ("a", "b", "c")]
        for kube in clusters:
            kube.add_node("n1", cpu=4, memory_gib=16)
            kube.limit_pods("n1", 0)
            kube.faults.stop_s = 0.0
        join_kubeconfigs(kubeconfig, clusters)
        section = {
            "kubeconfig": str(kubeconfig),
            "allowed_contexts": "all",
            "autoscaler": "generic",
            "provision_timeout": 1,
            "controller_url": f"http://127.0.0.1:{port}",
        }
        config = f"local: false\nlisten: {{port: {port}}}\nkubernetes: {json.dumps(section)}\n"
        (home / "config.yaml").write_text(config)
        with running_controller(home) as controller:
            task = tmp_path / "task.yaml"
            task.write_text(yaml.safe_dump({"name": "t", "run": "true", "resources": {"infra": "k8s", "cpus": 1}}))
            controller.perdure("jobs", "launch", task, "-y", "-d")
            asked: list[str] = []

            def all_were_asked() -> bool:
                waiting = [kube.context for kube in clusters if kube.pods()]
                assert len(waiting) <= 1, "two autoscalers would add a node for one job"
                asked.extend(name for name in waiting if name not in asked)
                return len(asked) == len(clusters)

            controller.until(all_were_asked, "a pod in every cluster, one after another")
            controller.perdure("jobs", "cancel", "1", "-y")
            controller.until(lambda: not any(kube.pods() for kube in clusters), "the end of every pod")
