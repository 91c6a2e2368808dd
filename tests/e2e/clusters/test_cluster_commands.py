"""A cluster through the command line: launch, exec, status, queue, logs, cancel, down."""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from typing import Any

import pytest

from perdure.sdk import Dag, Resources, Task, clusters
from support.helpers.clusters import Clusters
from support.helpers.timing import scaled


@pytest.fixture(scope="module")
def dev(sky: Clusters) -> Clusters:
    done = sky.controller.perdure("launch", "-c", "dev", "--yes", "--cpus", "4", "echo launched on $SKYPILOT_TASK_ID")
    assert "launched on sky-" in done.stdout
    assert "_dev_1\n" in done.stdout
    return sky


def test_exec__runs_and_returns_the_exit_code_of_the_job(dev: Clusters) -> None:
    perdure = dev.controller.perdure
    assert "\nhi\n" in perdure("exec", "dev", "echo hi").stdout
    failed = perdure("exec", "dev", "echo out; exit 3", check=False)
    assert (failed.returncode, "\nout\n" in failed.stdout) == (100, True)
    number = dev.exec("dev", "exit 7")
    assert dev.until("dev", number)["status"] == "FAILED"
    assert perdure("logs", "dev", number, "--status", check=False).returncode == 100
    assert perdure("logs", "dev", 9999, check=False).returncode == 102


def test_exec__prints_the_first_output_within_a_second(dev: Clusters) -> None:
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        dev.controller.perdure("exec", "dev", "echo hi")
        seconds.append(time.monotonic() - began)
    assert statistics.median(seconds) < scaled(1.5), seconds  # the whole command, which waits for the end of the job


def test_status_and_queue__have_the_columns_of_skypilot(dev: Clusters) -> None:
    perdure = dev.controller.perdure
    lines = perdure("status").stdout.splitlines()
    assert lines[1].split() == ["NAME", "INFRA", "RESOURCES", "STATUS", "AUTOSTOP", "LAUNCHED"]
    assert lines[2].split()[0] == "dev"
    assert " UP " in lines[2]
    assert "In progress tasks" not in perdure("status").stdout, "the machines of a cluster are no managed job"
    titles = perdure("queue", "dev").stdout.splitlines()[2].split()
    assert titles == ["ID", "NAME", "USER", "SUBMITTED", "STARTED", "DURATION", "RESOURCES", "STATUS", "LOG"]
    (cluster,) = json.loads(perdure("status", "d*", "-o", "json").stdout)
    assert (cluster["name"], cluster["status"]) == ("dev", "UP")
    jobs = json.loads(perdure("queue", "dev", "-o", "json").stdout)["dev"]
    assert (jobs[-1]["number"], jobs[-1]["status"]) == (1, "SUCCEEDED")
    assert perdure("jobs", "queue", "--all", "-o", "json").stdout.strip() == "[]"


def test_json__is_one_document_of_each_command(dev: Clusters) -> None:
    def document(*words: object) -> Any:
        return json.loads(dev.controller.perdure(*words, "-o", "json").stdout)

    launched = document("launch", "-c", "scripted", "-y", "--cpus", "1", "--no-setup", "echo hi")
    assert (launched["cluster"]["name"], launched["cluster"]["status"]) == ("scripted", "UP")
    assert (launched["job"]["number"], launched["warnings"]) == (1, [])
    queued = document("exec", "scripted", "sleep 600")
    assert (queued["cluster"]["name"], queued["job"]["number"]) == ("scripted", 2)
    assert document("launch", "-c", "scripted", "-y", "-d")["job"] is None
    dev.until("scripted", 2, "RUNNING")
    assert [job["status"] for job in document("cancel", "scripted", "-y")["scripted"]] == ["CANCELLED"]
    assert document("cancel", "scripted", "-y") == {"scripted": []}
    assert [job["number"] for job in document("queue", "scripted")["scripted"]] == [2, 1]
    logged = document("logs", "scripted", 1)
    assert (logged["job"]["number"], logged["log"].splitlines()[1]) == (1, "hi")
    assert document("logs", "scripted", 1, "--status")["log"] is None
    assert document("logs", "scripted", 1, "--attempt", 1)["log"] == logged["log"]
    dev.until("scripted", dev.exec("scripted", "sleep 600"), "RUNNING")
    cancelled = document("cancel", "scr*", "--all", "-y")
    assert [(job["number"], job["status"]) for job in cancelled["scripted"]] == [(3, "CANCELLED")]
    (set_to,) = document("autostop", "scripted", "-i", "30", "--down", "--idle-below", "5%")
    assert (set_to["name"], set_to["autostop_s"], set_to["autostop_down"]) == ("scripted", 1800.0, True)
    assert set_to["autostop_idle_below"] == 0.05
    assert " 30m (below 5%) (down) " in dev.controller.perdure("status", "scripted").stdout
    for command, status in (("stop", "STOPPED"), ("start", "UP"), ("down", "DOWN")):
        (changed,) = document(command, "scripted", "-y")
        assert (changed["cluster_id"], changed["status"]) == (launched["cluster"]["cluster_id"], status)
    failed = dev.controller.perdure("stop", "scripted", "-y", "-o", "json", check=False)
    assert (failed.returncode, failed.stdout) == (1, "")


def test_scripts_of_skypilot__keep_working(dev: Clusters) -> None:
    perdure = dev.controller.perdure
    shown = perdure("status", "-r", "--no-show-managed-jobs", "--no-show-services", "--no-show-pools").stdout
    assert "Managed jobs" not in shown
    refused = perdure("status", "dev", "--endpoint", "8888", check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "perdure port-forward dev 8888" in refused.stderr
    assert "attempt.running" in perdure("logs", "dev", "--provision", "-w", "0", "--no-follow", check=False).stdout
    assert "does not stop automatically" in perdure("autostop", "dev", "--cancel", "--async").stdout


def test_autostop_of_the_yaml__is_that_of_the_cluster(dev: Clusters) -> None:
    launched = clusters.launch_job(
        Task(run="true", resources=Resources(cpus=1, autostop={"idle_minutes": 60, "down": True, "wait_for": "jobs"})),
        "self-ending",
        client=dev.client,
    )
    assert launched.warnings == ()
    (cluster,) = clusters.clusters(["self-ending"], client=dev.client)
    assert (cluster["autostop_s"], cluster["autostop_down"], cluster["autostop_wait_for"]) == (3600.0, True, "jobs")
    again = Task(run="true", resources=Resources(cpus=1, autostop="2h"))
    clusters.launch_job(again, "self-ending", idle_s=60.0, client=dev.client)
    (cluster,) = clusters.clusters(["self-ending"], client=dev.client)
    assert cluster["autostop_s"] == 60.0, "the option wins"
    clusters.launch_job(again, "self-ending", client=dev.client)
    (cluster,) = clusters.clusters(["self-ending"], client=dev.client)
    assert (cluster["autostop_s"], cluster["autostop_down"]) == (7200.0, False)
    dev.controller.perdure("down", "self-ending", "--yes")


def test_slots__are_no_machines_of_a_cloud(dev: Clusters) -> None:
    endpoint = dev.client.endpoint
    request = urllib.request.Request(f"{endpoint.url}/metrics", headers={"Authorization": f"Bearer {endpoint.token}"})
    with urllib.request.urlopen(request, timeout=scaled(10)) as response:
        text = response.read().decode()
    assert 'cloud="local"' in text
    assert 'cloud="cluster"' not in text
    for command in (("gpus", "-o", "json"), ("check",)):
        assert "cluster" not in dev.controller.perdure(*command, check=False).stdout


def test_cancel__ends_the_newest_running_job(dev: Clusters) -> None:
    number = dev.exec("dev", "echo begun; sleep 600")
    dev.until("dev", number, "RUNNING")
    client = dev.controller.client
    nothing = {"cancelled": [], "finished": [], "unknown": []}
    assert clusters.get(clusters.cancel("dev", job_ids=[], client=client)) == nothing
    assert clusters.get(clusters.job_status("dev", [], client=client)) == {}
    assert clusters.cluster_queue("dev", [], client=client)["jobs"] == []
    assert clusters.clusters([], client=client) == []
    assert "does not exist" in dev.controller.perdure("down", "", "--yes", check=False).stderr
    assert f"Cancelled job ID {number}" in dev.controller.perdure("cancel", "dev", "--yes").stdout
    assert dev.job("dev", number)["status"] == "CANCELLED"
    assert dev.controller.perdure("logs", "dev", number, check=False).returncode == 103
    assert "No jobs to cancel" in dev.controller.perdure("cancel", "dev", "--yes").stdout


def test_jobs_cancel__does_not_take_the_machines_of_a_cluster(dev: Clusters) -> None:
    perdure = dev.controller.perdure
    (cluster,) = json.loads(perdure("status", "dev", "-o", "json").stdout)
    refused = perdure("jobs", "cancel", cluster["host_job_id"], "--yes", check=False)
    assert refused.returncode != 0
    assert "holds the machines of the cluster dev" in refused.stderr
    assert "perdure down dev" in refused.stderr
    assert "\nstill here\n" in perdure("exec", "dev", "echo still here").stdout


def test_queue__obeys_cpus_and_the_order_of_jobs(dev: Clusters) -> None:
    wide = [dev.exec("dev", "sleep 1", resources=Resources(cpus=4)) for _ in range(2)]
    small = dev.exec("dev", "true")
    dev.until("dev", wide[0], "RUNNING", "SUCCEEDED")
    assert dev.job("dev", wide[1])["status"] == "PENDING"
    assert dev.job("dev", small)["status"] == "PENDING", "it could delay the job before it, which waits for its CPUs"
    for number in (*wide, small):
        assert dev.until("dev", number)["status"] == "SUCCEEDED"
    starts = [dev.job("dev", number)["started_at"] for number in (*wide, small)]
    assert starts == sorted(starts)


def test_exec__that_can_never_fit_is_refused(dev: Clusters) -> None:
    done = dev.controller.perdure("exec", "dev", "--cpus", "64", "true", check=False)
    assert done.returncode == 1
    assert "cannot run this task" in done.stderr
    done = dev.controller.perdure("exec", "nowhere", "true", check=False)
    assert "Cluster 'nowhere' does not exist" in done.stderr


def test_down__leaves_logs_and_queue_and_no_machine(sky: Clusters) -> None:
    perdure = sky.controller.perdure
    before = set(sky.controller.home.glob("local/instances/*/machine"))
    sky.launch("brief")
    number = sky.exec("brief", "echo survives; sleep 600")
    sky.until("brief", number, "RUNNING")
    perdure("down", "br*", "--yes")
    assert sky.status("brief") == "DOWN"
    machines = sky.controller.home.glob
    sky.controller.until(lambda: set(machines("local/instances/*/machine")) <= before, "the end of its machine")
    assert sky.until("brief", number)["status"] == "CANCELLED"
    assert "survives\n" in sky.log("brief", number)
    assert "DOWN" in perdure("queue", "brief").stdout
    assert perdure("exec", "brief", "true", check=False).returncode != 0


def test_launch__refuses_what_is_no_cluster(sky: Clusters) -> None:
    done = sky.controller.perdure("launch", "-c", "1st", "--yes", "true", check=False)
    assert "cannot be the name of a cluster" in done.stderr
    with Dag() as dag:
        Task(run="true") >> Task(run="true")
    with pytest.raises(ValueError, match="single tasks"):
        clusters.exec_job(dag, "dev", client=sky.controller.client)
