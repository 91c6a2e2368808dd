"""What a job is compiled to: requirements, options of its machines, warnings, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.node_spec import Hook, NodeSpec
from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.nodes.node_spec import NodeSpecBuilder
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.submit.cluster.cluster_tasks import OnCluster
from perdure.controller.submit.compiler import Compiler, check_alternatives, parse_tasks
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.service import Submission, SubmissionService
from perdure.recovery.job import Timeouts
from perdure.sdk import Task
from perdure.sdk.spec.resource_fields import ACTS_IN_LAUNCH
from unit.controller.world import World

LOCAL_IGNORES = frozenset({"disk_gib", "disk_tier", "network_tier", "image_id"})


def compiler(world: World, market: MarketState | None = None) -> Compiler:
    storage = StorageService({}, world.database, world.owner, Path, world.clock)
    return Compiler(Keyring(b"k" * 32, "user"), market or world.market, storage)


def warnings(world: World, resources: str) -> tuple[str, ...]:
    """The warnings of a controller with a local cloud, which ignores images and disks, and an account of AWS."""
    clock = ManualClock()
    clouds = {name: FakeCloud(clock, name=name) for name in ("local", "aws")}
    clouds["local"].ignores = LOCAL_IGNORES
    config = Task.from_yaml_str(f"run: x\nresources: {resources}\n").to_yaml_config()
    return compiler(world, MarketState(clouds, clock)).compile("j", [config], clock.now()).warnings


class OpeningCloud(FakeCloud):
    """A cloud that opens ports."""

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        return {}

    def close_ports(self, region: str, name: str) -> None:
        pass


def launched_with(world: World, resources: str) -> dict[str, Any]:
    """The options of the machine that a job with these resources gets."""
    service = SubmissionService(world.database, world.clock, compiler(world), world.owner, lambda _digest, _now: True)
    config = Task.from_yaml_str(f"run: x\nresources: {resources}\n").to_yaml_config()
    accepted = service.accept(Submission("j", [config], "ada", None))
    world.inbox.adopt(accepted.claims, accepted.views)
    world.settle()
    (id,) = world.living()
    request = world.cloud._machines[id].request
    names = ("disk_gib", "disk_tier", "network_tier", "image_id", "labels")
    options = {name: getattr(request, name) for name in names if getattr(request, name)}
    return {"region": request.offer.region, **options}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("{disk_size: 50}", ["resources.disk_size: accepted, but has no effect on local"]),
        ("{image_id: ami-1, infra: '*'}", ["resources.image_id: accepted, but has no effect on local"]),
        ("{image_id: ami-1, infra: aws}", []),
        ("{disk_tier: low, any_of: [{infra: aws}]}", []),
        (
            "{any_of: [{infra: aws, disk_size: 50}, {infra: local, disk_tier: low}]}",
            ["resources.disk_tier: accepted, but has no effect on local"],
        ),
    ],
)
def test_warnings__name_the_clouds_that_ignore_a_field(world: World, resources: str, expected: list[str]) -> None:
    assert list(warnings(world, resources)) == expected


@pytest.mark.parametrize(
    ("resources", "closed"),
    [
        ("{ports: 80}", "azure and kubernetes"),
        ("{infra: azure, ports: 80}", "azure"),
        ("{infra: aws, ports: 80}", None),
        ("{any_of: [{infra: aws, ports: 80}, {infra: azure}]}", None),
        ("{ports: 80, any_of: [{infra: aws}, {infra: azure}]}", "azure"),
        ("{infra: azure}", None),
    ],
)
def test_warnings__of_a_cluster_name_the_clouds_that_open_no_ports(
    world: World, resources: str, closed: str | None
) -> None:
    clock = ManualClock()
    clouds = {name: FakeCloud(clock, name=name) for name in ("azure", "kubernetes", "local")}
    clouds["aws"] = OpeningCloud(clock, name="aws")
    by = compiler(world, MarketState(clouds, clock, unreachable={"local": "it is not used here"}))
    config = Task.from_yaml_str(f"run: x\nresources: {resources}\n").to_yaml_config()
    compiled = by.compile("j", [config], clock.now())
    adapted = OnCluster(1, "dev", is_job=False).adapt(compiled, by.clouds_without_ports())
    text = "resources.ports: accepted, but not opened on {}; `perdure port-forward` reaches the machines there"
    assert adapted.warnings == ((text.format(closed),) if closed else ())
    assert ACTS_IN_LAUNCH not in text, "`perdure launch` prints it"


@pytest.mark.parametrize(
    ("recovery", "unused"),
    [
        ("{strategy: CHEAPEST, patience: 0.1, move_cost: 2, work: 1h}", ["patience", "move_cost"]),
        ("{deadline: 60h, patience: 0.1, move_cost: 2, work: 1h}", ["patience"]),
        ("{strategy: VALUE, patience: 0.1, move_cost: 2}", []),
        ("{deadline: 60h, work: 1h, on_time: 0.99}", []),
        ("{strategy: VALUE, on_time: 0.99}", ["on_time"]),
        ("{patience: 0.1}", ["patience"]),  # nothing was observed yet, so the default is CHEAPEST
    ],
)
def test_warnings__name_the_options_that_the_strategy_does_not_use(
    world: World, recovery: str, unused: list[str]
) -> None:
    named = [warning.split(":")[0].rpartition(".")[2] for warning in warnings(world, f"{{job_recovery: {recovery}}}")]
    assert [name for name in named if name != "task x"] == unused


@pytest.mark.parametrize(
    ("field", "where"),
    [
        ("resources: {image_id: 'skypilot:ubuntu'}", "resources.image_id"),
        ("resources: {any_of: [{cpus: 1}, {image_id: 'skypilot:ubuntu'}]}", "resources.any_of[1].image_id"),
        ("volumes: {/data: v}", "volumes"),
        ("service: {readiness_probe: /up, replicas: 2}", "service"),
        ("pool: {workers: 2}", "pool"),
        ("config: {hooks: [{run: x, events: [stop]}]}", "config.hooks[0]"),
    ],
)
def test_compile__refuses_what_would_lose_results_or_run_something_else(world: World, field: str, where: str) -> None:
    task = Task.from_yaml_str(f"run: x\n{field}\n")
    with pytest.raises(RequestRejected) as error:
        compiler(world).compile("j", [{"run": "x"}, task.to_yaml_config()], world.clock.now())
    (unsupported,) = task.unsupported
    assert (error.value.where, error.value.status) == (where, 400)
    assert error.value.fix.endswith(f"--ignore {unsupported.option}")
    kept = task.ignoring([unsupported.option]).to_yaml_config()
    assert compiler(world).compile("j", [kept], world.clock.now()).tasks


def test_launch__gets_the_options_of_the_alternative_that_was_chosen(world: World) -> None:
    options = "labels: {team: a}, network_tier: best"
    resources = (
        f"{{{options}, ordered: [{{accelerators: 'H100:8', disk_size: 10, image_id: ami-9}}, "
        "{cpus: 4+, disk_size: 20, disk_tier: high, image_id: ami-1}, {cpus: 8+, disk_size: 30}]}"
    )
    assert launched_with(world, resources) == {
        "region": "fake-1",
        "disk_gib": 20,
        "disk_tier": "high",
        "network_tier": "best",
        "image_id": "ami-1",
        "labels": {"team": "a"},
    }


def test_launch__gets_the_image_of_the_offers_region(world: World) -> None:
    assert launched_with(world, "{image_id: {fake-2: ami-2, elsewhere: ami-3}}") == {
        "region": "fake-2",
        "image_id": "ami-2",
    }


def test_launch__is_in_no_region_without_an_image(world: World) -> None:
    job = compiler(world).compile("j", [{"run": "x", "resources": {"image_id": {"elsewhere": "ami-3"}}}], 0.0)
    assert {need.region for need in job.tasks[0].view.requirements} == {"elsewhere"}


def test_hooks__reach_the_node(world: World) -> None:
    service = SubmissionService(world.database, world.clock, compiler(world), world.owner, lambda _digest, _now: True)
    hooks = [{"run": "a"}, {"run": "b", "events": ["preemption", "stop"], "timeout": 5}, {"run": "c", "events": []}]
    accepted = service.accept(Submission("j", [{"run": "x", "config": {"hooks": hooks}}], "ada", None))
    world.inbox.adopt(accepted.claims, accepted.views)
    world.settle()
    keyring = Keyring(b"k" * 32, "user")
    storage = StorageService({}, world.database, world.owner, Path, world.clock)
    with world.database.connect() as conn:
        spec = NodeSpecBuilder(keyring, storage, {}, Timeouts()).build(conn, ((accepted.job_id, 0, 1), 0))
    assert spec is not None
    assert NodeSpec.parse(spec).hooks == (
        Hook("a", ("preemption", "down"), 3600.0),
        Hook("b", ("preemption",), 5.0),
        Hook("c", ("preemption", "down"), 3600.0),
    )


def node_spec(world: World, task: dict[str, Any]) -> dict[str, Any]:
    """What a node of the task's first attempt receives."""
    service = SubmissionService(world.database, world.clock, compiler(world), world.owner, lambda _digest, _now: True)
    accepted = service.accept(Submission("j", [task], "ada", None))
    world.inbox.adopt(accepted.claims, accepted.views)
    world.settle()
    storage = StorageService({}, world.database, world.owner, Path, world.clock)
    with world.database.connect() as conn:
        spec = NodeSpecBuilder(Keyring(b"k" * 32, "user"), storage, {}, Timeouts()).build(
            conn, ((accepted.job_id, 0, 1), 0)
        )
    assert spec is not None
    return spec


def test_container__runs_on_the_default_image_of_the_machine(world: World) -> None:
    """The credentials of the registry are the agent's alone."""
    task = {
        "run": "x",
        "resources": {"ordered": [{"accelerators": "H100:8", "image_id": "docker:a"}, {"image_id": "docker:me/b:1"}]},
        "config": {"docker": {"run_options": ["--shm-size=1g", "-v '/my data:/data'"]}},
        "envs": {"SKYPILOT_DOCKER_SERVER": "registry.example", "SKYPILOT_DOCKER_USERNAME": "ada", "A": "b"},
        "secrets": {"SKYPILOT_DOCKER_PASSWORD": "hunter2", "TOKEN": "t"},
    }
    spec = node_spec(world, task)
    assert spec["container"] == {
        "image": "me/b:1",
        "run_options": ["--shm-size=1g", "-v", "/my data:/data"],
        "registry": {"server": "registry.example", "username": "ada", "password": "hunter2"},
    }
    assert {"A", "TOKEN"} <= spec["env"].keys()
    assert not [name for name in spec["env"] if name.startswith("SKYPILOT_DOCKER")]
    (id,) = world.living()
    assert world.cloud._machines[id].request.image_id is None
    parsed = NodeSpec.parse(spec).container
    assert parsed is not None
    assert parsed.image == "registry.example/me/b:1"
    assert "hunter2" not in repr(parsed)


def test_container__needs_all_credentials_or_none(world: World) -> None:
    task = {"run": "x", "resources": {"image_id": "docker:a"}, "envs": {"SKYPILOT_DOCKER_USERNAME": "ada"}}
    with pytest.raises(RequestRejected, match="SKYPILOT_DOCKER_SERVER is not") as error:
        compiler(world).compile("j", [task], world.clock.now())
    assert error.value.where == "secrets.SKYPILOT_DOCKER_SERVER"


def test_runtime__reaches_the_node(world: World) -> None:
    spec = node_spec(world, {"run": "x", "runtime": {"python": "3.11"}})
    assert NodeSpec.parse(spec).python == "3.11"
    assert spec["container"] is None


def test_launch__selects_gpus_by_memory(world: World) -> None:
    assert launched_with(world, "{accelerators: '16GB+', use_spot: true}")["region"] == "fake-1"
    (id,) = world.living()
    assert world.cloud._machines[id].request.offer.accelerators == ("V100", 1.0)


def test_error__names_its_field_once() -> None:
    with pytest.raises(RequestRejected) as error:
        parse_tasks([{"run": "true", "resources": {"labels": {"perdure-x": "1"}}}])
    assert error.value.where == "resources.labels[perdure-x]"
    assert "resources.labels" not in error.value.message


@pytest.mark.parametrize(
    ("resources", "tasks", "message"),
    [
        ({"accelerators": {f"A100:{i}": None for i in range(1, 1_003)}}, 1, "1,002 combinations"),
        ({"any_of": [{"cpus": i + 1} for i in range(200)]}, 26, "5,200 combinations"),
        ({"any_of": [{"cpus": i + 1} for i in range(20)], "image_id": {f"r{i}": "ami" for i in range(60)}}, 1, "1,200"),
    ],
)
def test_compile__refuses_too_many_alternatives(resources: dict[str, Any], tasks: int, message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        check_alternatives(parse_tasks([{"run": "x", "resources": resources}] * tasks))
    assert message in str(caught.value)


def test_compile__accepts_the_most_alternatives() -> None:
    check_alternatives(parse_tasks([{"run": "x", "resources": {"any_of": [{"cpus": i + 1} for i in range(200)]}}] * 12))
