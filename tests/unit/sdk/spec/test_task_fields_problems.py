"""The problems of wrong tasks: where, what was found, what to do; all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.sdk import Dag, Problem, Resources, Storage, Task, TaskError


@pytest.mark.parametrize(
    "text",
    [
        "resources: {cpus: ١}",
        "resources: {memory: ١+}",
        "resources: {disk_size: ١GB}",
        "resources: {ports: ٨٠}",
        "resources: {accelerators: ٨GB+}",
        "resources: {autostop: ١m}",
        *(
            f"file_mounts: {{/a: {{name: abc, mode: MOUNT_CACHED, config: {{mount_cached: {{{field}: ١}}}}}}}}"
            for field in ("vfs_write_back", "flush_every", "vfs_cache_max_size")
        ),
    ],
)
def test_number__has_ascii_digits(text: str) -> None:
    assert "allowed: " in error_of(f"run: x\n{text}")


def error_of(text: str) -> str:
    with pytest.raises(TaskError) as error:
        Dag.from_yaml(text + "\n")
    return str(error.value)


ANY_ACCELERATOR = "allowed: A100, A100:8, 80GB+, {A100: 8}, a list, or several keys"
CLOUDS = "Perdure can use aws, azure, gcp, kubernetes, local"
SCHEMES = "allowed: s3://, gs://, r2://, https://, cos://, oci://, nebius://, cw://, vastdata://, hf://, local://"
NAME = "a string of letters, digits, dots, dashes and underscores, with a letter or digit at both ends"
BUCKET = "use 3 to 63 lower-case letters, digits, dots, dashes or underscores, with a letter or digit at both ends"

IN_RESOURCES = {
    # fields
    "acelerators: A100": "resources.acelerators: unknown field 'acelerators'; did you mean 'accelerators'?",
    "spot_recovery: none": "resources.spot_recovery: unknown field 'spot_recovery'; did you mean 'job_recovery'?",
    "num_nodes: 2": "resources.num_nodes: unknown field 'num_nodes'; it belongs at the top of the task",
    "4: 2": "resources[4]: unknown field '4'; allowed: infra, cloud, region, zone, instance_type, cpus, memory, "
    "accelerators, gpus, accelerator_args, use_spot, job_recovery, disk_size, ephemeral_storage, disk_tier, "
    "network_tier, local_disk, max_hourly_cost, ports, labels, image_id, autostop, hooks, priority, priority_class, "
    "volumes, any_of, ordered",
    # places
    "infra: asw": f"resources.infra: unknown cloud 'asw'; did you mean 'aws'? {CLOUDS}",
    "infra: aws/a/b/c": "resources.infra: 'aws/a/b/c' has 4 parts; write cloud/region/zone",
    "infra: aws//b": "resources.infra: '' is not the name of a region or zone; write a name, or * for any",
    "infra: 5": "resources.infra: found the number 5; "
    "allowed: cloud, cloud/region or cloud/region/zone, with * for any",
    "cloud: qqq": f"resources.cloud: unknown cloud 'qqq'; {CLOUDS}",
    "region: us east": "resources.region: 'us east' is not the name of a region or zone; write a name, or * for any",
    "{infra: aws, region: us-east-1}": "resources.region: given together with 'infra'; keep one of them",
    # sizes
    "cpus: -4": "resources.cpus: found the number -4; allowed: a number above 0 such as 4, or 4+ for at least 4",
    "cpus: 0": "resources.cpus: found the number 0; allowed: a number above 0 such as 4, or 4+ for at least 4",
    "cpus: four": "resources.cpus: found 'four'; allowed: a number above 0 such as 4, or 4+ for at least 4",
    "cpus: true": "resources.cpus: found the boolean true; allowed: a number above 0 such as 4, or 4+ for at least 4",
    "cpus: .inf": "resources.cpus: found the number inf; allowed: a number above 0 such as 4, or 4+ for at least 4",
    "memory: 64 apples": "resources.memory: found '64 apples'; allowed: GiB such as 32, 32+ for at least that, or 64GB",
    "memory: 4x": "resources.memory: found '4x'; allowed: GiB such as 32, 32+ for at least that, or 64GB",
    "disk_size: 100+": "resources.disk_size: found '100+'; allowed: GiB above 0 such as 100, or 100GB",
    "disk_tier: hgih": "resources.disk_tier: unknown value 'hgih'; did you mean 'high'? "
    "allowed: low, medium, high, ultra, best, none",
    "network_tier: fast": "resources.network_tier: unknown value 'fast'; allowed: standard, best",
    "max_hourly_cost: 0": "resources.max_hourly_cost: found the number 0; allowed: a number above 0",
    # accelerators
    "accelerators: A100:none": f"resources.accelerators: 'A100:none' names no accelerator; {ANY_ACCELERATOR}",
    **{
        f"accelerators: {text}": f"resources.accelerators: {part!r} names no accelerator; "
        "write the count after a colon, as in A100:8"
        for text, part in {"A100 x 8": "x", "A100 8": "8", "A100 x8": "x8", "8x A100": "8x", "{'8': 1}": "8"}.items()
    },
    "image_id: 'docker:'": "resources.image_id: names no image; write `docker:IMAGE`",
    "image_id: {us-east-1: 'docker:'}": "resources.image_id: names no image; write `docker:IMAGE`",
    "accelerators: A100:0": f"resources.accelerators: 'A100:0' has no count above 0; {ANY_ACCELERATOR}",
    "accelerators: A100:1.2.3": f"resources.accelerators: 'A100:1.2.3' has no count above 0; {ANY_ACCELERATOR}",
    "accelerators: {A100: -1}": f"resources.accelerators: 'A100:-1' names no accelerator; {ANY_ACCELERATOR}",
    "accelerators: {A100: true}": f"resources.accelerators: nothing names no accelerator; {ANY_ACCELERATOR}",
    "accelerators: {'A100:1': 8}": "resources.accelerators: 'A100:1' is given the count 8 besides its own; "
    "give one count",
    "accelerators: 8": f"resources.accelerators: found the number 8; {ANY_ACCELERATOR}",
    "accelerators: []": "resources.accelerators: found a list, which names no accelerator; remove it to request none",
    "accelerators: {}": "resources.accelerators: found a mapping, which names no accelerator; "
    "remove it to request none",
    "accelerators: 999GB+": "resources.accelerators: no known GPU has 999GB+ of memory; "
    "name the accelerator, such as A100:8",
    "accelerators: {'80GB+:2': 8}": "resources.accelerators: '80GB+:2' is given the count 8 besides its own; "
    "give one count",
    "{infra: aws/eu-west-1, image_id: {us-east-1: ami-1}}": "resources.image_id: has no image for eu-west-1; "
    "add one, or remove the region eu-west-1",
    "accelerators: ''": f"resources.accelerators: '' names no accelerator; {ANY_ACCELERATOR}",
    "{accelerators: A100, gpus: A100}": "resources.gpus: given together with 'accelerators'; keep one of them",
    # market and recovery
    "use_spot: 'yes'": "resources.use_spot: found 'yes'; allowed: true or false",
    "job_recovery: CHEPEST": "resources.job_recovery: unknown value 'CHEPEST'; did you mean 'CHEAPEST'? "
    "allowed: FAILOVER, EAGER_NEXT_REGION, CHEAPEST, SPREAD, VALUE, DEADLINE, none",
    "job_recovery: {strategy: EAGER_NEXT_ZONE}": "resources.job_recovery.strategy: unknown value 'EAGER_NEXT_ZONE'; "
    "did you mean 'EAGER_NEXT_REGION'? allowed: FAILOVER, EAGER_NEXT_REGION, CHEAPEST, SPREAD, VALUE, DEADLINE, none",
    "job_recovery: {max_restarts: 3}": "resources.job_recovery.max_restarts: unknown field 'max_restarts'; "
    "did you mean 'max_restarts_on_errors'?",
    "job_recovery: {max_restarts_on_errors: -1}": "resources.job_recovery.max_restarts_on_errors: "
    "found the number -1; allowed: a whole number from 0",
    "job_recovery: {recover_on_exit_codes: 256}": "resources.job_recovery.recover_on_exit_codes: "
    "found the number 256; allowed: a whole number from 0 to 255",
    "job_recovery: {recover_on_exit_codes: [1, 2, 1]}": "resources.job_recovery.recover_on_exit_codes[2]: "
    "the number 1 is listed twice; list it once",
    "job_recovery: 3": "resources.job_recovery: found the number 3; allowed: "
    "one of FAILOVER, EAGER_NEXT_REGION, CHEAPEST, SPREAD, VALUE, DEADLINE, none, or a mapping with strategy "
    "and limits",
    # the rest
    "priority: 1001": "resources.priority: found the number 1001; allowed: a whole number from -1000 to 1000",
    "priority: 1.5": "resources.priority: found the number 1.5; allowed: a whole number from -1000 to 1000",
    "ports: 0": "resources.ports: found the number 0; allowed: a port or a range such as 8080-8090",
    "ports: [80, 9-8]": "resources.ports[1]: found '9-8'; allowed: a port or a range such as 8080-8090",
    "labels: {team: 1}": "resources.labels.team: found the number 1; allowed: a string on one line, so put "
    "it in quotes",
    "labels: {'perdure:state': a}": "resources.labels[perdure:state]: found 'perdure:state': Perdure finds its own "
    "machines and disks by such labels; allowed: a string, not `perdure:…`",
    "labels: {Perdure-job: a}": "resources.labels[Perdure-job]: found 'Perdure-job': Perdure finds its own "
    "machines and disks by such labels; allowed: a string, not `perdure:…`",
    'labels: {team: "a\\nb"}': "resources.labels.team: found 'a\\nb', which has a line break or another control "
    "character; allowed: a string on one line",
    "image_id: [a]": "resources.image_id: found a list; allowed: a string, or a mapping from region to image",
    "autostop: soon": "resources.autostop: found 'soon'; allowed: a duration such as 10m",
    "autostop: {wait_for: job}": "resources.autostop.wait_for: unknown value 'job'; did you mean 'jobs'? "
    "allowed: jobs_and_ssh, jobs, none",
    "ephemeral_storage: lots": "resources.ephemeral_storage: found 'lots'; allowed: GiB above 0 such as 50, or 50GB",
    "volumes: [{name: v}]": "resources.volumes[0]: lacks 'path'; give `path`",
    # alternatives
    "any_of: []": "resources.any_of: found a list of 0; give at least 1",
    "any_of: {infra: aws}": "resources.any_of: found a mapping; allowed: a list of resources",
    "any_of: [aws]": "resources.any_of[0]: found 'aws'; allowed: resources",
    "any_of: [{infra: aws, any_of: []}]": "resources.any_of[0].any_of: unknown field 'any_of'; allowed: infra, cloud, "
    "region, zone, instance_type, cpus, memory, accelerators, gpus, accelerator_args, use_spot, job_recovery, "
    "disk_size, ephemeral_storage, disk_tier, network_tier, local_disk, max_hourly_cost, ports, labels, image_id, "
    "autostop, hooks, priority, priority_class, volumes",
    "{any_of: [{infra: aws}], ordered: [{infra: gcp}]}": "resources.ordered: given together with 'any_of'; "
    "keep one of them",
    "any_of: [{job_recovery: failover}, {job_recovery: cheapest}]": "resources.any_of: the alternatives differ in "
    "job_recovery; write one `job_recovery` beside `any_of`",
}


@pytest.mark.parametrize(("text", "expected"), IN_RESOURCES.items())
def test_resources__problem_has_line_and_fix(text: str, expected: str) -> None:
    body = f"resources: {text}" if text.startswith("{") else f"resources:\n  {text}"
    line = 1 if text.startswith("{") else 2
    assert error_of(body) == f"line {line}: {expected}"


IN_TASK = {
    "just words": "line 1: found 'just words'; allowed: a task: a mapping with run, setup, resources, …",
    "- run: x": "line 1: found a list; allowed: a task: a mapping with run, setup, resources, …",
    "rum: x": "line 1: rum: unknown field 'rum'; did you mean 'run'?",
    "accelerators: A100": "line 1: accelerators: unknown field 'accelerators'; it belongs under `resources`",
    "{execution: parallel, run: x}": "line 1: execution: unknown field 'execution'; it belongs in a first document of "
    "its own, before the tasks",
    "name: 5": f"line 1: name: found the number 5; allowed: {NAME}, so put it in quotes",
    "name: -x": f"line 1: name: found '-x'; allowed: {NAME}",
    "name: a b": f"line 1: name: found 'a b'; allowed: {NAME}",
    "run: [a, b]": "line 1: run: found a list; allowed: a string with shell commands",
    "num_nodes: 0": "line 1: num_nodes: found the number 0; allowed: a whole number from 1 to 10000",
    "num_nodes: '2'": "line 1: num_nodes: found '2'; allowed: a whole number from 1 to 10000",
    "num_nodes: 1.5": "line 1: num_nodes: found the number 1.5; allowed: a whole number from 1 to 10000",
    "workdir: {ref: main}": "line 1: workdir: lacks 'url'; give `url`",
    "workdir: 5": "line 1: workdir: found the number 5; allowed: a string with a local path, or an upload, "
    "or a mapping with the url and ref of a git repository, so put it in quotes",
    "envs: [A]": "line 1: envs: found a list; allowed: a mapping",
    "envs: {A: [1]}": "line 1: envs.A: found a list; allowed: text, a number or a boolean",
    "envs: {1A: x}": "line 1: envs.1A: '1A' is not a variable name; "
    "allowed: letters, digits and underscores, no digit first",
    "secrets: [A-B]": "line 1: secrets[0]: 'A-B' is not a variable name; allowed: a variable's name, or secrets:NAME",
    "secrets: [secrets:NOT_IN_MY_SHELL]": "line 1: secrets.NOT_IN_MY_SHELL: has no value; "
    "pass --secret NOT_IN_MY_SHELL=VALUE",
    "secrets: {NOT_IN_MY_SHELL: }": "line 1: secrets.NOT_IN_MY_SHELL: has no value; "
    "pass --secret NOT_IN_MY_SHELL=VALUE",
    "config: {hooks: [{events: [stop]}]}": "line 1: config.hooks[0]: lacks 'run'; give `run`",
    "config: {hooks: [{run: x, events: [stopp]}]}": "line 1: config.hooks[0].events[0]: unknown value 'stopp'; "
    "did you mean 'stop'? allowed: stop, preemption, down",
    "config: {a: .nan}": "line 1: config.a: found the number nan; "
    "allowed: text, finite numbers, booleans, lists, mappings",
    "inputs: {a: -1}": "line 1: inputs.a: found the number -1; allowed: a number from 0",
    # mounts
    "file_mounts: [/a]": "line 1: file_mounts: found a list; "
    "allowed: a mapping from paths on the machine to local paths or buckets",
    "file_mounts: {/: ./x}": "line 1: file_mounts[/]: found '/'; allowed: the path where it appears on the machine",
    "file_mounts: {'s3://b': /a}": "line 1: file_mounts[s3://b]: found the URI 's3://b'; "
    "write the path on the machine first: `/data: s3://bucket`",
    "file_mounts: {/a: 's4://b'}": "line 1: file_mounts[/a]: unknown scheme in 's4://b'; "
    f"did you mean 's3://'? {SCHEMES}",
    "file_mounts: {/a: 's3://'}": "line 1: file_mounts[/a]: 's3://' names no bucket; write it like s3://bucket/folder",
    "file_mounts: {/a: 'https://example.com/x'}": "line 1: file_mounts[/a]: 'https://example.com/x' is not a bucket; "
    "https:// is for https://<account>.blob.core.windows.net/<container>",
    "file_mounts: {/a: ''}": "line 1: file_mounts[/a]: found an empty string; "
    "allowed: a local path, or a bucket such as s3://bucket/folder",
    "file_mounts: {/a: 5}": "line 1: file_mounts[/a]: found the number 5; allowed: a local path, or a bucket such as "
    "s3://bucket/folder, or an upload, or a bucket with name or source, mode, store",
    "file_mounts: {/a: {name: abc, mode: MOUNT_CACHED, config: {mount_cached: {buffer_size: 10XB}}}}": "line 1: "
    "file_mounts[/a].config.mount_cached.buffer_size: found '10XB'; "
    "allowed: a size such as 64M, in bytes with K, M, G or T, or `off`",
    "file_mounts: {/a: {name: abc, mode: MOUNT_CACHED, config: {mount_cached: {vfs_write_back: 1d12h}}}}": "line 1: "
    "file_mounts[/a].config.mount_cached.vfs_write_back: found '1d12h'; "
    "allowed: a duration such as 90s, 10m or 1h30m, or `off`",
    "file_mounts: {/a: {}}": "line 1: file_mounts[/a].name: the bucket has no name; write the bucket's name after "
    "`name:`, or an existing bucket such as s3://my-bucket after `source:`",
    "file_mounts: {/a: {nmae: my-bucket, source: 's3://b'}}": "line 1: file_mounts[/a].nmae: unknown field 'nmae'; "
    "did you mean 'name'?",
    "file_mounts: {/a: {name: A}}": f"line 1: file_mounts[/a].name: 'A' is not a bucket name; {BUCKET}",
    "file_mounts: {/a: {name: 's3://abc'}}": "line 1: file_mounts[/a].name: found the URI 's3://abc'; "
    "write it as `source`, and remove `name`",
    "file_mounts: {/a: {name: 'b-${NOPE}'}}": "line 1: file_mounts[/a].name: 'b-${NOPE}' refers to a variable that has "
    "no value; define it under `envs`",
    "file_mounts: {/a: {name: abc, store: S4}}": "line 1: file_mounts[/a].store: unknown value 'S4'; "
    "allowed: S3, GCS, R2, AZURE, IBM, OCI, NEBIUS, COREWEAVE, VASTDATA, HF, LOCAL, VOLUME",
    "file_mounts: {/a: {name: abc, mode: CACHED}}": "line 1: file_mounts[/a].mode: unknown value 'CACHED'; "
    "did you mean 'MOUNT_CACHED'? allowed: MOUNT, COPY, MOUNT_CACHED",
    "file_mounts: {/a: {source: ./x}}": "line 1: file_mounts[/a].name: local files are the source, but the bucket has "
    "no name; write the name of the bucket that the local files go to",
    "file_mounts: {/a: {name: abc, source: [./x, 's3://b']}}": "line 1: file_mounts[/a].source[1]: found the bucket "
    "'s3://b' in a list of files; mount each bucket at a path of its own",
    "file_mounts: {/a: {name: abc, source: 's3://xyz'}}": "line 1: file_mounts[/a].name: 'abc' is not the bucket 'xyz' "
    "of `source`; remove `name`",
    "file_mounts: {/a: {store: gcs, source: 's3://xyz'}}": "line 1: file_mounts[/a].store: 'GCS' is not the store S3 "
    "of `source`; remove `store`",
    "file_mounts: {/a: {name: abc, _bucket_sub_path: x}}": "line 1: file_mounts[/a]._bucket_sub_path: names a folder, "
    "but `source` is no bucket; write the bucket with its folder as `source`, such as s3://my-bucket/folder",
    "file_mounts: {/a: {source: 's3://b/y', _bucket_sub_path: x}}": "line 1: file_mounts[/a]._bucket_sub_path: 'x' is "
    "not the folder 'y' of `source`; keep one of them",
    "file_mounts: {/a: {name: abc, type: DATASET_RO}}": "line 1: file_mounts[/a].type: has a meaning for MOUNT_CACHED "
    "only, and the mode is MOUNT; write `mode: MOUNT_CACHED`, or remove `type`",
    "file_mounts: {/a: {name: abc, mode: MOUNT_CACHED, config: {mount_cached: {transfers: 0}}}}": "line 1: "
    "file_mounts[/a].config.mount_cached.transfers: found the number 0; allowed: a whole number from 1",
}


@pytest.mark.parametrize(("text", "expected"), IN_TASK.items())
def test_task__problem_has_line_and_fix(text: str, expected: str) -> None:
    assert error_of(text) == expected


def test_task__reports_all_problems_in_text_order() -> None:
    text = (
        "nmae: x\nenvs:\n  NOT_IN_MY_SHELL:\nresources:\n  cpus: -1\n  any_of:\n    - infra: aws\n      cpus: zero\n"
        "    - {accelerators: [A100, ':8'], use_spot: 1}\nnum_nodes: 0\n"
    )
    assert error_of(text).splitlines() == [
        "the task has 7 problems:",
        "  line 1: nmae: unknown field 'nmae'; did you mean 'name'?",
        "  line 3: envs.NOT_IN_MY_SHELL: has no value; pass --env NOT_IN_MY_SHELL=VALUE",
        "  line 5: resources.cpus: found the number -1; allowed: a number above 0 such as 4, or 4+ for at least 4",
        "  line 8: resources.any_of[0].cpus: found 'zero'; allowed: a number above 0 such as 4, or 4+ for at least 4",
        f"  line 9: resources.any_of[1].accelerators: ':8' names no accelerator; {ANY_ACCELERATOR}",
        "  line 9: resources.any_of[1].use_spot: found the number 1; allowed: true or false",
        "  line 10: num_nodes: found the number 0; allowed: a whole number from 1 to 10000",
    ]


def test_problem__has_line_and_column() -> None:
    with pytest.raises(TaskError) as error:
        Task.from_yaml_str("resources:\n  cpus: x\n")
    (problem,) = error.value.problems
    assert (problem.field, problem.line, problem.column) == ("resources.cpus", 2, 9)
    assert (problem.message, problem.fix) == (
        "found 'x'",
        "allowed: a number above 0 such as 4, or 4+ for at least 4",
    )
    assert isinstance(problem, Problem)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Resources(cpus="x"), "resources.cpus: found 'x'; "
         "allowed: a number above 0 such as 4, or 4+ for at least 4"),
        (lambda: Resources(infra="aws", region="r"), "resources.region: given together with 'infra'; keep one of them"),
        (lambda: Storage(mode="COPY"), "storage.name: the bucket has no name; write the bucket's name after `name:`, "
         "or an existing bucket such as s3://my-bucket after `source:`"),
        (lambda: Storage(name="abc", stores=["S3", "GCS"]), "storage.stores: found 2 stores; give one store"),
        (lambda: Task(run=5), "run: found the number 5; allowed: a string with shell commands, so put it in quotes"),
        (lambda: Task(resources=[]), "resources: found a list; give a Resources, a list of them (in order), "
         "or a set of them (any)"),
        (lambda: Task.from_yaml_config({"envs": {"NOT_IN_MY_SHELL": None}}),
         "envs.NOT_IN_MY_SHELL: has no value; pass --env NOT_IN_MY_SHELL=VALUE"),
        (lambda: Task.from_yaml_str("run: a\n---\nrun: b\n"),
         "2 documents: a pipeline, not a task; read it with Dag.from_yaml"),
        (lambda: Task("a") >> Task("b"), "a >> b outside of a Dag; write it within `with Dag() as dag:`"),
    ],
)  # fmt: skip
def test_python_objects__report_problems(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(TaskError) as error:
        make()
    assert str(error.value) == expected


def test_task__rejects_endless_nesting() -> None:
    deep: Any = {}
    deep["a"] = deep
    with pytest.raises(TaskError, match="nested too deeply to be a task"):
        Task.from_yaml_config({"config": deep})
