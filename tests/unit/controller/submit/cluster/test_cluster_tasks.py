"""What a task asks of a cluster: limits, secrets, keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from perdure.controller.api.routes.jobs import LaunchBody
from perdure.controller.store.records.jobs import Job
from perdure.controller.submit.cluster.cluster_tasks import lacking, short_resources
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.job import Recovery
from perdure.recovery.market.slot_queue import Demand, NodeRoom
from perdure.sdk import Task
from unit.controller.submit.sky import ADA, TASK, Sky


def test_keys__of_clusters_cannot_be_sent_by_a_user(sky: Sky) -> None:
    sky.launch()
    sky.exec()
    with sky.daemon.database.connect() as conn:
        of_cluster = select(Job.c.idempotency_key).where(Job.c.cluster_id == sky.cluster().id)
        keys = list(conn.execute(of_cluster).scalars())
    assert len(keys) == 3
    for key in keys:
        with pytest.raises(ValidationError):
            LaunchBody.model_validate({"tasks": [], "key": key})


def with_recovery(**fields: Any) -> dict[str, Any]:
    return {**TASK, "resources": {"job_recovery": fields}}


def test_limits__of_the_task_hold_for_the_machines_and_for_the_job(sky: Sky) -> None:
    launched = sky.launch(
        with_recovery(
            max_cost=50.0,
            max_duration="2h",
            stuck_after="30m",
            restart_when_stuck="1h",
            max_restarts_on_errors=3,
            recover_on_exit_codes=[9],
        )
    )
    assert launched.warnings == ()
    of_host, of_job = sky.recovery(sky.hosts()[0].id), sky.recovery(launched.job_id)
    assert of_host == Recovery(strategy="CHEAPEST", recovers=False, max_cost=50.0)
    assert of_job == Recovery(
        strategy="QUEUED",
        max_restarts_on_errors=3,
        recover_on_exit_codes=frozenset({9}),
        stuck_after_s=1800.0,
        restart_when_stuck_s=3600.0,
        max_run_s=7200.0,
    )
    assert sky.limit_s(launched.job_id) == 7200.0, "the queue must know it"


def test_limit__of_a_request_wins_over_that_of_its_task(sky: Sky) -> None:
    assert sky.limit_s(sky.launch(with_recovery(max_duration="2h"), limit_s=60.0).job_id) == 60.0


def test_limits__without_effect_are_warned_of(sky: Sky) -> None:
    sky.launch(with_recovery(max_cost=50.0))
    config = with_recovery(deadline="2100-01-01T00:00:00Z", keep_on_failure="1h", max_cost=60.0)
    warnings = sky.service.exec(sky.name, config, ADA, f"{sky.name}-exec", None).warnings
    unused = "resources.job_recovery.{}: accepted, but has no effect on a job of a cluster"
    assert [unused.format(name) for name in ("deadline", "keep_on_failure", "max_cost")] == [
        warning for warning in warnings if warning.startswith("resources.job_recovery")
    ]
    (kept,) = sky.launch(with_recovery(max_cost=60.0), key="again").warnings
    assert kept.startswith(f"the cluster {sky.name} keeps the max_cost that it was launched with")
    assert sky.launch(with_recovery(max_cost=50.0), key="third").warnings == ()


def test_ports__are_those_of_each_alternative(sky: Sky) -> None:
    options = [{"cpus": 1, "ports": 22}, {"cpus": 2, "ports": [8080, "9000-9010"]}, {"cpus": 3}]
    sky.launch({**TASK, "resources": {"any_of": options}})
    opened = [[str(port) for port in one.get("ports", ())] for one in sky.spec(sky.hosts()[0].id)[0]["machines"]]
    assert opened == [["22"], ["8080", "9000-9010"], []]


def test_warnings_about_machines__are_those_of_a_new_cluster(sky: Sky) -> None:
    """Also of one without a job."""
    text = "resources.ports: accepted, but not opened on azure"

    def accept(submission: Submission) -> Accepted:
        accepted = sky.daemon.api_context.cluster_service.accept(submission)
        is_job = submission.cluster is None or submission.cluster.is_job
        return accepted if is_job else replace(accepted, warnings=(text,))

    sky.service = replace(sky.service, accept=accept)
    assert sky.launch(with_job=False).warnings == (text,)
    assert sky.launch(key="again").warnings == (), "the cluster has its machines"


def test_secret__in_a_mount_is_stored_sealed_only_and_until_the_cluster_is_down(sky: Sky) -> None:
    config = {**TASK, "file_mounts": {"/data-hunter22": "local://bucket"}, "secrets": {"TOKEN": "hunter22"}}
    sky.launch(config)
    row = sky.cluster()
    assert "hunter22" not in repr(row._mapping)
    assert row.config["file_mounts"] == {"/data-${TOKEN}": "local://bucket"}
    assert sky.launch(config, key="again").warnings == (), "the mounts are the same"
    sky.stop()
    sky.service.start(sky.name)
    spec, sealed = sky.spec(sky.hosts()[-1].id)
    assert [mount["path"] for mount in spec["mounts"]] == ["/data-${TOKEN}"]
    assert sky.service.keyring.unseal(sealed) == {"TOKEN": "hunter22"}
    sky.service.down(sky.name)
    assert sky.cluster().secrets is None


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"accelerators": "A100:8", "use_spot": True}, "1x(A100:8)[Spot]"),
        ({"accelerators": ["A100:8", "H100:4"], "cpus": "4+"}, "1x(cpus=4+, A100:8 or H100:4)"),
        ({}, "1x(any)"),
    ],
)
def test_short_resources__are_words_of_the_task(resources: dict[str, Any], text: str) -> None:
    assert short_resources(Task.from_yaml_config({"run": "x", "resources": resources})) == text


NODES = {0: NodeRoom(8.0, 32.0, (1.0,) * 8), 1: NodeRoom(8.0, 32.0, (1.0,) * 8)}


@pytest.mark.parametrize(
    ("has", "wanted", "demand", "num_nodes", "text"),
    [
        ("A100", "A100", Demand(4.0, 0.0, 8.0), 2, None),
        ("A100", "a100", Demand(4.0, 0.0, 1.0), 1, None),
        ("A100", "H100", Demand(4.0, 0.0, 1.0), 1, "it has no H100, but A100"),
        (None, "H100", Demand(4.0, 0.0, 1.0), 1, "it has no H100"),
        ("A100", None, Demand(4.0), 3, "it has 2 nodes, and the task takes 3"),
        ("A100", "A100", Demand(4.0, 0.0, 9.0), 1, "a node has 8 accelerators, and the task takes 9"),
        ("A100", None, Demand(16.0), 2, "a node has 8 CPUs, and the task takes 16 on each node"),
    ],
)
def test_lacking__names_what_there_is_too_little_of(
    has: str | None, wanted: str | None, demand: Demand, num_nodes: int, text: str | None
) -> None:
    assert lacking(has, wanted, NODES, demand, num_nodes) == text
