"""A cluster whose API server does not answer: its jobs go on and end, and others are launched as fast as ever."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.fakes.kube import FakeKube
from support.fakes.kube.clusters import join_kubeconfigs
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow


def launch(controller: Controller, tmp_path: Path, context: str, run: str) -> bool:
    task: dict[str, Any] = {"name": context, "run": run, "resources": {"infra": f"k8s/{context}", "cpus": 1}}
    (tmp_path / f"{context}.yaml").write_text(yaml.safe_dump(task))
    done = controller.perdure("jobs", "launch", tmp_path / f"{context}.yaml", "-y", "-d", check=False)
    return done.returncode == 0


def test_unreachable_context__harms_no_job_and_a_new_one_is_taken_up(tmp_path: Path) -> None:
    home, port, kubeconfig = tmp_path / "home", unused_port(), tmp_path / "kubeconfig"
    home.mkdir()
    with contextlib.ExitStack() as stack:
        east, west, south = (
            stack.enter_context(FakeKube(tmp_path / name, context=name)) for name in ("east", "west", "south")
        )
        for kube in (east, west, south):
            kube.add_node(f"{kube.context}-1", zone=kube.context)
        join_kubeconfigs(kubeconfig, [east, west])
        section = {
            "kubeconfig": str(kubeconfig),
            "allowed_contexts": "all",
            "controller_url": f"http://127.0.0.1:{port}",
        }
        config = f"local: false\nlisten: {{port: {port}}}\nkubernetes: {json.dumps(section)}\n"
        (home / "config.yaml").write_text(config)
        with running_controller(home) as controller:
            assert launch(
                controller, tmp_path, "east", f"while test ! -e {tmp_path}/go; do sleep 0.2; done; echo arrived"
            )
            controller.until(lambda: controller.job(1)["status"] == "RUNNING", "the job in the east")
            east.faults.silent = True
            began = time.monotonic()
            assert launch(controller, tmp_path, "west", "echo in the west")
            controller.until(lambda: controller.job(2)["status"] == "SUCCEEDED", "the job in the west")
            assert time.monotonic() - began < scaled(25), "it waited for no answer of the other cluster"
            join_kubeconfigs(kubeconfig, [east, west, south])
            controller.until(lambda: south.calls["WATCH pods"] and south.calls["WATCH nodes"], "its watches")
            controller.until(lambda: launch(controller, tmp_path, "south", "echo in the south"), "the new offers")
            controller.until(lambda: controller.job(3)["status"] == "SUCCEEDED", "the job in a context that is new")
            assert controller.job(1)["status"] == "RUNNING"
            (tmp_path / "go").touch()
            controller.until(lambda: controller.job(1)["status"] == "SUCCEEDED", "the end of the job in the east")
            shown = controller.job(1)
            assert "arrived" in controller.log(1)
            assert (shown["recovery_count"], len(shown["attempts"])) == (0, 1)
            east.faults.silent = False
            controller.until(lambda: not east.pods(), "the clean-up after the return")
            assert east.calls["POST pods"] == 1, "nothing was bought twice"
            assert controller.job(1)["attempts"][0]["cost_usd"] > 0
