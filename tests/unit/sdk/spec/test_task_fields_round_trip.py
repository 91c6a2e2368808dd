"""A task survives the conversion to a mapping and back, whatever it contains."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.sdk import Dag, Resources, Task, TaskError
from perdure.sdk.requirements import machine_requirements, recovery
from perdure.sdk.spec.infra import CLOUDS
from perdure.sdk.spec.resource_fields import STRATEGIES
from perdure.sdk.spec.task_fields import TASK_FIELDS

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
VARIABLES = st.sampled_from(["A", "B", "_C", "Long_Name1"])
# Texts with references to variables, whole and broken.
TEXTS = st.lists(st.sampled_from(["$A", "${B}", "$", "{_C}", "${", "}", "A", "x-", "é", "\n", "/", ":", "#"])).map(
    "".join
)
BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9.-]{1,10}[a-z0-9]", fullmatch=True)
PATHS = st.builds("/{}{}".format, st.sampled_from("abc"), st.sampled_from(["", "/$A", "/${B}/x"]))
PLACES = st.sampled_from(["*", "us-east-1", "eu_west"])
INFRA = st.builds(lambda *parts: "/".join(parts), st.sampled_from([*CLOUDS, "*", "k8s", "AWS"]), PLACES) | st.just("*")
AMOUNTS = st.one_of(
    st.integers(1, 512),
    st.floats(0.001, 1e6),
    st.builds("{}{}".format, st.integers(1, 99), st.sampled_from(["", "+"])),
)
COUNTS = st.integers(1, 16) | st.floats(0.1, 1).map(lambda count: round(count, 3))
CHIPS = st.sampled_from(["A100", "h100", "L4", "MyChip", "tpu-v2-8", "80GB+", "nvidia:40GB"])
ONE_CHIP = CHIPS | st.builds("{}:{}".format, CHIPS, COUNTS)
ACCELERATORS = st.one_of(
    ONE_CHIP,
    st.lists(ONE_CHIP, min_size=1, max_size=3),
    st.lists(ONE_CHIP, min_size=1, max_size=3).map(" ".join),
    st.dictionaries(CHIPS, COUNTS | st.none(), min_size=1, max_size=3),
    st.dictionaries(ONE_CHIP, st.none(), min_size=1, max_size=3),
)
RECOVERY = st.one_of(
    st.none(),
    st.sampled_from([*(s for s in STRATEGIES if s != "DEADLINE"), "none", "failover"]),
    st.fixed_dictionaries(
        {"deadline": st.sampled_from(["60h", "2026-12-01T08:00Z", "1d 12h"]), "work": st.sampled_from(["48h", "90m"])},
        optional={
            "strategy": st.just("DEADLINE"),
            "on_time": st.floats(0.5, 1),
            "patience": st.floats(0, 1),
            "move_cost": st.integers(0, 9),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "strategy": st.none() | st.sampled_from([s for s in STRATEGIES if s != "DEADLINE"]),
            "max_restarts_on_errors": st.integers(0, 9),
            "recover_on_exit_codes": st.integers(0, 255) | st.lists(st.integers(0, 255), unique=True, max_size=3),
        },
    ),
)
ONE = {
    "infra": st.none() | INFRA,
    "instance_type": NAMES,
    "cpus": AMOUNTS,
    "memory": AMOUNTS | st.sampled_from(["64GB", "1TB+"]),
    "accelerators": ACCELERATORS,
    "use_spot": st.booleans(),
    "disk_size": st.integers(1, 9999) | st.sampled_from(["100GB", "10MB"]),
    "disk_tier": st.sampled_from(["low", "none", "BEST"]),
    "network_tier": st.sampled_from(["standard", "best"]),
    "max_hourly_cost": st.floats(0.01, 100),
    "ports": st.integers(1, 65535) | st.lists(st.sampled_from([80, "90", "1-2"]), max_size=2),
    "labels": st.dictionaries(NAMES, TEXTS.filter(str.isprintable), max_size=2),
    "image_id": st.none() | TEXTS | st.just({}),
    "autostop": st.booleans() | st.integers(-1, 9) | st.just("10m") | st.just({"down": True}),
    "priority": st.integers(-1000, 1000),
}
ONE_RESOURCES = st.fixed_dictionaries({}, optional=ONE)
ALTERNATIVES = st.lists(ONE_RESOURCES, min_size=1, max_size=3)
RESOURCES = st.one_of(
    st.fixed_dictionaries({}, optional=ONE | {"job_recovery": RECOVERY}),
    st.fixed_dictionaries({"any_of": ALTERNATIVES}, optional=ONE | {"job_recovery": RECOVERY}),
    st.fixed_dictionaries({"ordered": ALTERNATIVES}, optional=ONE | {"job_recovery": RECOVERY}),
)
STORAGE = st.one_of(
    st.fixed_dictionaries(
        {"name": BUCKETS},
        optional={
            "source": st.none() | st.sampled_from(["./x", "~/$A"]) | st.lists(st.just("./$B"), min_size=1, max_size=2),
            "store": st.sampled_from(["s3", "GCS", "local"]),
            "persistent": st.booleans(),
            "mode": st.sampled_from(["MOUNT", "copy", "MOUNT_CACHED"]),
            "config": st.just({"mount_cached": {"transfers": 2, "vfs_write_back": "1s"}}) | st.just({}),
        },
    ),
    st.builds(lambda name: {"source": f"s3://{name}/$A"}, BUCKETS),
)
MOUNTS = st.one_of(st.just("./x"), st.just("s3://bucket/${B}"), st.just({"upload": "ab", "is_file": True}), STORAGE)
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
TASKS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.none() | NAMES,
        "workdir": st.none() | TEXTS | st.just({"url": "https://x/$A", "ref": "main"}) | st.just({"upload": "ab"}),
        "num_nodes": st.none() | st.integers(1, 9),
        "resources": st.none() | RESOURCES,
        "file_mounts": st.dictionaries(PATHS, MOUNTS, max_size=3),
        "setup": st.none() | TEXTS,
        "run": st.none() | TEXTS,
        "envs": st.dictionaries(VARIABLES, SCALARS, max_size=3),
        "secrets": st.dictionaries(VARIABLES, SCALARS, max_size=2),
        "config": st.dictionaries(NAMES, JSON, max_size=2),
        "service": st.fixed_dictionaries(
            {"readiness_probe": st.just("/up") | st.fixed_dictionaries({"path": st.just("/$A"), "post_data": JSON})},
            optional={"replicas": st.integers(0, 9), "ports": st.integers(1, 9), "load_balancer": st.just({})},
        ),
        "volumes": st.dictionaries(PATHS, TEXTS, max_size=2),
        "inputs": st.dictionaries(TEXTS, st.floats(0, 9), max_size=2),
        "event_callback": TEXTS,
        "api_server_access": st.booleans(),
    },
)


def parse(config: dict[str, Any]) -> Task | None:
    """The task, or None if the drawn texts make an invalid one, such as a variable that grows without end."""
    try:
        return Task.from_yaml_config(config)
    except TaskError as error:
        text_out = str(error)
    assert text_out
    return None


@given(TASKS)
def test_task__round_trips_through_json(config: dict[str, Any]) -> None:
    task = parse(config)
    if task is None:
        return
    out = task.to_yaml_config()
    again = Task.from_yaml_config(json.loads(json.dumps(out)))
    assert again == task
    assert again.to_yaml_config() == out
    # There may be fewer: overruled fields of alternatives are gone.
    assert {warning.split(": ")[-1] for warning in again.warnings} <= {w.split(": ")[-1] for w in task.warnings}


@given(st.lists(TASKS, min_size=1, max_size=3))
def test_task__round_trips_through_yaml(configs: list[dict[str, Any]]) -> None:
    tasks = [task for config in configs if (task := parse(config)) and task.to_yaml_config().keys() - {"name"}]
    if not tasks:
        return
    text = yaml.safe_dump_all([task.to_yaml_config() for task in tasks], allow_unicode=True)
    assert Dag.from_yaml(text if "\n" in text else text + "\n").tasks == tasks


@given(RESOURCES)
def test_resources__round_trip(config: dict[str, Any]) -> None:
    alternatives = Task.from_yaml_config({"resources": config}).resources
    again = Task(resources=alternatives).resources
    assert again == alternatives
    assert machine_requirements(again) == machine_requirements(alternatives)
    assert recovery(again) == recovery(alternatives)
    assert sorted({need.rank for need in machine_requirements(again)}) == list(
        range(max(n.rank for n in machine_requirements(again)) + 1)
    )
    for option in alternatives:
        assert Resources.from_yaml_config(option.to_yaml_config()) == option
        assert option.copy() == option
        assert hash(option.copy()) == hash(option)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted(TASK_FIELDS))


@given(
    st.dictionaries(FIELDS, ANYTHING, max_size=4),
    st.dictionaries(
        st.sampled_from([*ONE, "job_recovery", "any_of", "ordered", "gpus", "cloud"]), ANYTHING, max_size=4
    ),
)
def test_task__rejects_nonsense_without_crashing(config: dict[str, Any], resources: dict[str, Any]) -> None:
    for wrong in (config, {"resources": resources}, {"file_mounts": {"/a": config}}):
        task = parse(wrong)
        if task is not None:
            json.dumps(task.to_yaml_config(), allow_nan=False)
            assert Task.from_yaml_config(task.to_yaml_config()) == task


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from([*"[]{}:,&*!|>'\"%@`-? \n\ta1#", "<<", "---\n", "a: "])).map("".join)
)
def test_dag__rejects_any_invalid_text(text: str) -> None:
    text_out = ""
    try:
        text_out = repr(Dag.from_yaml(text + "\n"))
    except TaskError as error:
        text_out = str(error)
    assert text_out
