"""A cluster over its life: several nodes, stop and start, autostop, lost machines, limits."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from perdure.sdk import Resources, Task, clusters
from support.helpers.clusters import Clusters


def host(sky: Clusters, name: str) -> int:
    """The job that holds the cluster's machines."""
    found = clusters.clusters([name], client=sky.controller.client)[0]["host_job_id"]
    assert found is not None
    return found


def until_status(sky: Clusters, name: str, status: str) -> None:
    sky.controller.until(lambda: sky.status(name) == status, f"{name} to be {status}, not {sky.status(name)}")


def one(sky: Clusters, name: str) -> dict[str, Any]:
    return dict(clusters.clusters([name], client=sky.controller.client)[0])


def test_job__of_two_nodes_runs_on_both_and_fails_as_a_whole(sky: Clusters) -> None:
    sky.launch("pair", num_nodes=2, resources=Resources(cpus=2))
    script = 'echo "$SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES: $(echo "$SKYPILOT_NODE_IPS" | sort -u | wc -l)"'
    assert sorted(sky.output("pair", script, num_nodes=2).splitlines()) == ["(rank 0) 0 of 2: 2", "(rank 1) 1 of 2: 2"]
    failing = sky.exec("pair", 'if [ "$SKYPILOT_NODE_RANK" = 1 ]; then exit 5; fi; sleep 600', num_nodes=2)
    assert sky.until("pair", failing)["status"] == "FAILED"
    wide = sky.exec("pair", "sleep 600", num_nodes=2, resources=Resources(cpus=2))
    sky.until("pair", wide, "RUNNING")
    waiting = sky.exec("pair", "true", resources=Resources(cpus=1))
    assert sky.job("pair", waiting)["status"] == "PENDING"
    clusters.cancel("pair", job_ids=[wide], client=sky.controller.client)
    assert sky.until("pair", waiting)["status"] == "SUCCEEDED"


@pytest.mark.slow
def test_backfill__uses_limits(sky: Clusters) -> None:
    sky.launch("gpus", resources=Resources(accelerators="V100:8"))
    jobs = [
        sky.exec("gpus", "sleep 4", resources=Resources(accelerators="V100:6"), limit_s=600.0),
        sky.exec("gpus", "true", resources=Resources(accelerators="V100:8")),
        sky.exec(
            "gpus", "echo $CUDA_VISIBLE_DEVICES; sleep 600", resources=Resources(accelerators="V100:2"), limit_s=1.5
        ),
    ]
    sky.until("gpus", jobs[2], "RUNNING", "FAILED")
    assert sky.job("gpus", jobs[1])["status"] == "PENDING"
    assert sky.until("gpus", jobs[2])["status"] == "FAILED", "its limit ends it"
    assert sky.log("gpus", jobs[2]) == "6,7\n"
    assert sky.until("gpus", jobs[1])["status"] == "SUCCEEDED"
    halves = [
        sky.exec("gpus", "echo $CUDA_VISIBLE_DEVICES", resources=Resources(accelerators="V100:0.5")) for _ in "12"
    ]
    assert [sky.log("gpus", sky.until("gpus", number)["number"]) for number in halves] == ["0\n", "0\n"]


def test_stop_and_start__keep_the_queue(sky: Clusters) -> None:
    perdure = sky.controller.perdure
    sky.launch("rest", resources=Resources(cpus=2))
    script = "trap 'echo saved; exit 0' TERM; echo begun $SKYPILOT_TASK_ID; sleep 600 & wait"
    running = sky.exec("rest", script, resources=Resources(cpus=2))
    sky.until("rest", running, "RUNNING")
    waiting = sky.exec("rest", "echo waited", resources=Resources(cpus=2))
    perdure("stop", "rest", "--yes")
    assert sky.status("rest") == "STOPPED"
    assert [sky.job("rest", number)["status"] for number in (running, waiting)] == ["PENDING", "PENDING"]
    assert "saved\n" in sky.log("rest", running)
    rejected = perdure("exec", "rest", "true", check=False).stderr
    assert rejected.startswith("Error: the cluster rest is stopped\n")
    perdure("start", "rest", "--yes")
    sky.until("rest", running, "RUNNING")
    sky.controller.until(lambda: sky.log("rest", running).count("begun ") == 2, "the second start of the job")
    assert len({line for line in sky.log("rest", running).splitlines() if line.startswith("begun ")}) == 1
    raw = perdure("logs", "rest", running, "--no-follow", check=False).stdout
    assert "--- attempt 1 on cluster rest, requested " in raw
    assert "--- attempt 1 ended: cluster rest was stopped ---\n" in raw
    assert "refused" not in raw
    unknown = perdure("cancel", "rest", running, 99, "--yes", check=False)
    assert "the cluster rest has no job 99" in unknown.stderr
    assert sky.job("rest", running)["status"] == "RUNNING", "a wrong call changes nothing"
    perdure("cancel", "rest", running, "--yes")
    assert sky.until("rest", waiting)["status"] == "SUCCEEDED"


@pytest.mark.slow
def test_home__is_there_again_after_stop_and_start(sky: Clusters) -> None:
    sky.launch("home", num_nodes=2, resources=Resources(cpus=1, infra="local"))
    buckets = sky.controller.home / "local" / "buckets"
    sky.controller.until(lambda: one(sky, "home")["home"], "the bucket of its home")
    kind, _, bucket = one(sky, "home")["home"].partition(":")
    assert (kind, one(sky, "home")["home_problem"]) == ("local", "")
    sky.output(
        "home", "echo $SKYPILOT_NODE_RANK > ~/rank; mkdir -p ~/venv/bin; ln -s /bin/true ~/venv/bin/run", num_nodes=2
    )
    sky.controller.perdure("stop", "home", "--yes")
    assert sky.status("home") == "STOPPED"
    assert sorted(path.name for path in (buckets / bucket).glob("r?.json")) == ["r0.json", "r1.json"]
    sky.controller.perdure("start", "home", "--yes")
    assert sorted(sky.output("home", "cat ~/rank && ~/venv/bin/run && echo ran", num_nodes=2).split()) == [
        *("(rank", "(rank", "(rank", "(rank"), "0", "0)", "0)", "1", "1)", "1)", "ran", "ran",
    ]  # fmt: skip
    sky.controller.perdure("down", "home", "--yes")
    sky.controller.until(lambda: not (buckets / bucket).exists(), "the removal of the bucket")


def test_preempted_cluster__keeps_queue_and_logs_until_it_is_started(sky: Clusters) -> None:
    sky.launch("spot", resources=Resources(cpus=2, use_spot=True))
    done = sky.exec("spot", "echo done")
    sky.until("spot", done)
    running = sky.exec("spot", "echo runs; [ -e /nowhere ] || sleep 3")
    sky.until("spot", running, "RUNNING")
    sky.controller.perdure("jobs", "preempt", host(sky, "spot"))
    until_status(sky, "spot", "PREEMPTED")
    assert sky.log("spot", done) == "done\n"
    sky.until("spot", running, "PENDING")
    assert "PREEMPTED" in sky.controller.perdure("status", "spot").stdout
    sky.controller.perdure("start", "spot", "--yes")
    assert sky.until("spot", running)["status"] == "SUCCEEDED"
    assert sky.status("spot") == "UP"


def test_recover__brings_a_preempted_cluster_back_by_itself(sky: Clusters) -> None:
    sky.launch("back", resources=Resources(cpus=2, use_spot=True), recover=True)
    running = sky.exec("back", "echo runs; sleep 3")
    sky.until("back", running, "RUNNING")
    sky.controller.perdure("jobs", "preempt", host(sky, "back"))
    assert sky.until("back", running)["status"] == "SUCCEEDED"
    assert sky.job("back", running)["recovery_count"] == 1


def test_restarts__that_the_task_allows_wait_in_the_queue(sky: Clusters) -> None:
    script = "[ -e ~/failed ] || { touch ~/failed; exit 3; }; echo again"
    resources = Resources(cpus=1, job_recovery={"max_restarts_on_errors": 1})
    launched = sky.launch("retry", script, resources=resources)
    assert launched.number is not None
    assert sky.until("retry", launched.number)["status"] == "SUCCEEDED"
    assert "again\n" in sky.log("retry", launched.number)


@pytest.mark.slow
def test_max_cost__ends_the_machines(sky: Clusters) -> None:
    resources = Resources(cpus=1, job_recovery={"max_cost": 0.0001})
    launched = clusters.launch_job(Task(run="sleep 600", resources=resources), "dear", client=sky.client)
    job_id = host(sky, "dear")
    # It is down if it costs so much before it is up.
    sky.controller.until(lambda: sky.status("dear") in ("STOPPED", "DOWN"), "the cluster to reach its max_cost")
    assert "max_cost" in sky.controller.perdure("jobs", "show", job_id).stdout
    assert launched.number is not None
    sky.until("dear", launched.number, "PENDING", "CANCELLED")


@pytest.mark.slow
def test_autostop__stops_after_the_last_job_and_stays_set(sky: Clusters) -> None:
    sky.launch("idle", idle_s=2.0)
    busy = sky.exec("idle", "sleep 4")
    sky.until("idle", busy)
    until_status(sky, "idle", "STOPPED")
    sky.controller.perdure("start", "idle", "--yes")
    assert one(sky, "idle")["autostop_s"] == 2.0
    until_status(sky, "idle", "STOPPED")
    autostop = partial(sky.controller.perdure, "autostop", "idle")
    assert autostop("-i", "1").stdout == "The cluster idle stops automatically after 1 idle minute.\n"
    assert autostop("-i", "90", "--down").stdout == "The cluster idle ends automatically after 90 idle minutes.\n"
    assert autostop("--cancel").stdout == "The cluster idle does not stop automatically.\n"
    assert one(sky, "idle")["autostop_s"] is None


def test_autodown__ends_the_cluster_once_its_jobs_have_ended(sky: Clusters) -> None:
    launched = sky.launch("once", "echo once", idle_s=0.0, down=True)
    assert launched.number is not None
    until_status(sky, "once", "DOWN")
    assert sky.job("once", launched.number)["status"] == "SUCCEEDED"
    assert sky.log("once", launched.number) == "once\n"


@pytest.mark.slow
def test_home__has_the_same_content_in_another_zone(sky: Clusters) -> None:
    """A spot cluster, whose zone sells nothing any more when it is started again."""
    sky.launch("moves", resources=Resources(cpus=1, use_spot=True, infra="local"))
    sky.controller.until(lambda: one(sky, "moves")["home"], "the bucket of its home")
    digest = sky.output("moves", "head -c 3000000 /dev/urandom > ~/x; sha256sum < ~/x")
    zone = one(sky, "moves")["infra"].partition("(")[2].rstrip(")")
    sky.controller.perdure("stop", "moves", "--yes")
    zones = sky.controller.home / "local" / "zones.json"
    zones.write_text(json.dumps({zone: {"capacity": 0}}))
    try:
        sky.controller.perdure("start", "moves", "--yes")
        assert zone not in one(sky, "moves")["infra"]
        assert sky.output("moves", "sha256sum < ~/x") == digest
    finally:
        zones.unlink()
    sky.controller.perdure("down", "moves", "--yes")


@pytest.mark.slow
def test_lost_node__ends_the_others_and_leaves_queue_and_logs(sky: Clusters) -> None:
    before = sky.machines()
    sky.launch("gang", num_nodes=3, resources=Resources(cpus=1, use_spot=True))
    done = sky.exec("gang", "echo done")
    sky.until("gang", done)
    running = sky.exec("gang", "sleep 600", num_nodes=3)
    sky.until("gang", running, "RUNNING")
    assert len(sky.machines() - before) == 3
    sky.controller.perdure("jobs", "preempt", host(sky, "gang"), "--node", 1, "--kill")
    until_status(sky, "gang", "PREEMPTED")
    sky.controller.until(lambda: sky.machines() <= before, "the end of the other nodes", timeout_s=60)
    assert sky.log("gang", done) == "done\n"
    assert sky.until("gang", running, "PENDING")["message"] == (
        "the cluster gang has lost its machines; to launch others: perdure start gang"
    )
    sky.controller.perdure("down", "gang", "--yes")
