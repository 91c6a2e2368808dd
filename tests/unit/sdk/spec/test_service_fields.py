"""The `service` section: its forms, its rules, and what it needs of the rest of the task."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.sdk import Task, TaskError
from perdure.sdk.spec.service_fields import check_service, service_port

EVERYTHING = {
    "readiness_probe": {
        "path": "/health",
        "initial_delay_seconds": 5,
        "timeout_seconds": 2,
        "endpoint_probe_interval_seconds": 3,
        "consecutive_failure_threshold_timeout": 60,
        "post_data": {"model": "m", "n": 1},
        "headers": {"Authorization": "Bearer x"},
    },
    "replica_policy": {
        "min_replicas": 1,
        "max_replicas": 5,
        "num_overprovision": 1,
        "target_qps_per_replica": {"A100:8": 2.5, "L4": 1},
        "upscale_delay_seconds": 30,
        "downscale_delay_seconds": 60,
        "dynamic_ondemand_fallback": True,
        "base_ondemand_fallback_replicas": 1,
        "spot_placer": "dynamic_fallback",
    },
    "load_balancing_policy": "instance_aware_least_load",
    "load_balancer": {"stream_timeout_seconds": 600},
    "ports": 8080,
    "tls": {"keyfile": "a.key", "certfile": "a.pem"},
}


def task(service: Any = "/", **more: Any) -> Task:
    section = {"readiness_probe": service} if isinstance(service, str) else service
    return Task.from_yaml_config({"service": section, "run": "serve", "resources": {"ports": 8080}} | more)


def test_service__takes_every_field_of_skypilot() -> None:
    config = task(EVERYTHING, resources={"ports": 8080, "use_spot": True}).to_yaml_config()
    assert config["service"] == EVERYTHING
    assert Task.from_yaml_config(config).to_yaml_config() == config
    assert check_service(config) == []


def test_service__has_a_short_form_of_the_probe() -> None:
    assert task("/v1/models").to_yaml_config()["service"] == {"readiness_probe": {"path": "/v1/models"}}


def test_service__keeps_a_body_that_is_text() -> None:
    probe = {"path": "/", "post_data": '{"a": 1}'}
    assert task({"readiness_probe": probe}).to_yaml_config()["service"]["readiness_probe"] == probe


@pytest.mark.parametrize(
    ("service", "field", "message"),
    [
        ({}, "service", "lacks 'readiness_probe'"),
        ({"readiness_probe": "health"}, "service.readiness_probe", "starts with `/`"),
        ({"readiness_probe": {"path": "/", "post_data": "{"}}, "service.readiness_probe.post_data", "not JSON"),
        ({"readiness_probe": {"path": "/", "headers": {"a b": "c"}}}, "service.readiness_probe.headers", "header"),
        ({"readiness_probe": "/", "replicas": 1, "replica_policy": {"min_replicas": 1}}, "service", "together"),
        ({"readiness_probe": "/", "replicas": -1}, "service.replicas", "number"),
        ({"readiness_probe": "/", "replica_policy": {"max_replicas": 1}}, "service.replica_policy", "min_replicas"),
        (
            {"readiness_probe": "/", "replica_policy": {"min_replicas": 2, "max_replicas": 1}},
            "service.replica_policy.max_replicas",
            "below min_replicas",
        ),
        (
            {"readiness_probe": "/", "replica_policy": {"min_replicas": 1, "max_replicas": 2}},
            "service.replica_policy.max_replicas",
            "how many replicas",
        ),
        ({"readiness_probe": "/", "load_balancing_policy": "random"}, "service.load_balancing_policy", "least_load"),
        (
            {"readiness_probe": "/", "load_balancing_policy": "instance_aware_least_load"},
            "service.load_balancing_policy",
            "belong together",
        ),
        ({"readiness_probe": "/", "pool": True}, "service.pool", "pools"),
        ({"readiness_probe": "/", "replica": 2}, "service.replica", "replicas"),
        ({"readiness_probe": "/", "tls": {"keyfile": "a"}}, "service.tls", "certfile"),
    ],
)
def test_service__names_what_is_wrong(service: object, field: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        task(service)
    (problem,) = caught.value.problems
    assert problem.field.startswith(field)
    assert message in str(problem)


def test_service__is_not_launched_as_a_job() -> None:
    (field,) = task().unsupported
    assert "perdure serve up" in str(field)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"run": None}, "run"),
        ({"resources": {}}, "service.ports"),
        ({"resources": {"ports": [80, 81]}}, "service.ports"),
        ({"resources": {"ports": "80-90"}}, "service.ports"),
        ({"num_nodes": 2}, "num_nodes"),
        ({"resources": {"ports": 80, "job_recovery": "FAILOVER"}}, "resources.job_recovery"),
        ({"resources": {"ports": 80, "any_of": [{"use_spot": True}, {"use_spot": False}]}}, "resources"),
    ],
)
def test_check_service__names_what_a_service_needs(more: dict[str, Any], field: str) -> None:
    (problem,) = check_service(task(**more).to_yaml_config())
    assert problem.field == field


def test_check_service__wants_spot_for_a_fallback() -> None:
    policy = {"min_replicas": 1, "dynamic_ondemand_fallback": True}
    (problem,) = check_service(task({"readiness_probe": "/", "replica_policy": policy}).to_yaml_config())
    assert "use_spot: true" in str(problem)


@pytest.mark.parametrize(
    ("alternatives", "num_problems"),
    [([{"infra": "aws"}, {"infra": "gcp"}], 0), ([{"cpus": 1}, {"cpus": 2}], 1)],
)
def test_check_service__places_machines_that_are_alike(alternatives: list[object], num_problems: int) -> None:
    policy = {"min_replicas": 1, "spot_placer": "dynamic_fallback"}
    resources = {"ports": 80, "use_spot": True, "any_of": alternatives}
    config = task({"readiness_probe": "/", "replica_policy": policy}, resources=resources).to_yaml_config()
    assert len(check_service(config)) == num_problems


@pytest.mark.parametrize(
    ("given", "listed", "expected"), [(None, 8080, 8080), (81, [80, 81], 81), (85, "80-90", 85), (7, None, 7)]
)
def test_service_port__is_given_or_the_only_one(given: int | None, listed: object, expected: int) -> None:
    section = {"readiness_probe": "/"} | ({"ports": given} if given else {})
    resources = {"ports": listed} if listed else {}
    assert service_port(task(section, resources=resources).to_yaml_config()) == expected
