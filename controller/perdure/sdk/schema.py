"""The task YAML as data: every field, the forms it is accepted in, and which have no effect here.

The fields are SkyPilot's. `storage_rules` and `resource_rules` hold what single fields can not say.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from perdure.sdk import accelerators, buckets, deadlines, infra, quantities
from perdure.sdk.forms import (
    Anything,
    Either,
    Field,
    Items,
    Number,
    Parsed,
    Record,
    Table,
    flag,
    matching,
    text,
    word,
)
from perdure.sdk.problems import Refused, shown
from perdure.sdk.resource_rules import finish_all_resources, finish_resources
from perdure.sdk.storage_rules import finish_storage, read_mount_path, read_mount_source

STRATEGIES = ("FAILOVER", "EAGER_NEXT_REGION", "CHEAPEST", "SPREAD", "VALUE", "DEADLINE")
MOST_NODES = 10_000  # each is a row, a machine and a token: far more than any cloud gives to one task
DISK_TIERS = ("low", "medium", "high", "ultra", "best", "none")

_NOT_HERE = "accepted, but has no effect in Perdure"
_ENDS = "accepted, but has no effect: a job's machines are always terminated when it ends"
_JOBS_ONLY = "accepted, but has no effect: Perdure runs jobs, not services or pools"

_NUMBER_OR_TEXT = (int, float, str)
TEXT = text()
FLAG = flag()
NAME = matching(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    "a string of letters, digits, dots, dashes and underscores, with a letter or digit at both ends",
)


def _variable_name(value: Any) -> str:
    name = str(value)
    if isinstance(value, bool) or not name.isascii() or not name.isidentifier():
        raise Refused(f"{shown(name)} is no variable name")
    return name


def _managed_secret(value: str) -> str:
    prefix, _, name = value.rpartition("secrets:")
    if prefix:
        raise Refused(f"found {shown(value)}")
    return _variable_name(name)


def _port(value: Any) -> str:
    first, dash, last = str(value).partition("-")
    ends = [int(end) if end.isdecimal() else 0 for end in ((first, last) if dash else (first,))]
    if not all(1 <= end <= 65535 for end in ends) or ends != sorted(ends):
        raise Refused(f"found {shown(value)}")
    return str(value)


# Variables. A value may be any YAML scalar, and becomes its text; null means that the caller has to give it.
VARIABLE_NAME = Parsed(_variable_name, "letters, digits and underscores, no digit first", (str, int))
VARIABLE_VALUE = Parsed(str, "text, a number or a boolean", (str, int, float, bool))
VARIABLES = Table(VARIABLE_NAME, VARIABLE_VALUE, nullable=True)
SECRET_NAME = Parsed(_managed_secret, "a variable's name, or secrets:NAME", (str,))
SECRETS = Either(Table(SECRET_NAME, VARIABLE_VALUE, nullable=True), Items(SECRET_NAME))

JOB_RECOVERY_FIELDS = {
    "strategy": Field(word(*STRATEGIES, "none")),
    "max_restarts_on_errors": Field(Number(low=0)),
    "recover_on_exit_codes": Field(Items(Number(0, 255), alone=True, unique=True)),
    "deadline": Field(Parsed(deadlines.read_deadline, deadlines.DEADLINE, (str, datetime))),
    "work": Field(Parsed(deadlines.read_duration, deadlines.DURATION, (str,))),
    "patience": Field(Number(low=0, whole=False)),
    "move_cost": Field(Number(low=0, whole=False)),
}
AUTOSTOP_FIELDS = {
    "idle_minutes": Field(Number(low=-1)),
    "down": Field(FLAG),
    "wait_for": Field(word("jobs_and_ssh", "jobs", "none")),
    "hook": Field(TEXT),
    "hook_timeout": Field(Number(positive=True)),
}
HOOK_FIELDS = {
    "run": Field(matching(r"(?s).{1,16384}", "a string of at most 16 KiB")),
    "events": Field(Items(word("stop", "preemption", "down"), unique=True)),
    "timeout": Field(Number(positive=True)),
}
HOOKS = Items(Record(HOOK_FIELDS, "hooks", required=("run",)), at_most=32)
RESOURCE_VOLUME_FIELDS = {
    name: Field(Anything())
    for name in ("name", "path", "disk_size", "disk_tier", "storage_type", "attach_mode", "auto_delete")
}

# What one alternative may ask for; `resources` itself may ask for all of it, and for alternatives.
RESOURCE_FIELDS = {
    "infra": Field(Parsed(infra.read, "cloud, cloud/region or cloud/region/zone, with * for any")),
    "cloud": Field(Parsed(infra.cloud_name, "a cloud's name")),
    "region": Field(Parsed(infra.place, "a region's name")),
    "zone": Field(Parsed(infra.place, "a zone's name")),
    "instance_type": Field(TEXT),
    "cpus": Field(Parsed(quantities.cpus, "a number above 0 such as 4, or 4+ for at least 4", _NUMBER_OR_TEXT)),
    "memory": Field(Parsed(quantities.memory, "GiB such as 32, 32+ for at least that, or 64GB", _NUMBER_OR_TEXT)),
    "accelerators": Field(
        Parsed(accelerators.read, "A100, A100:8, {A100: 8}, a list, or several keys", (str, list, tuple, dict))
    ),
    "gpus": Field(
        Parsed(accelerators.read, "A100, A100:8, {A100: 8}, a list, or several keys", (str, list, tuple, dict))
    ),
    "accelerator_args": Field(
        Record(
            {
                "runtime_version": Field(TEXT),
                "tpu_name": Field(TEXT),
                "tpu_vm": Field(FLAG),
                "gcp_queued_resource": Field(FLAG),
            }
        ),
        inert=_NOT_HERE,
    ),
    "use_spot": Field(FLAG),
    "job_recovery": Field(
        Either(word(*STRATEGIES, "none"), Record(JOB_RECOVERY_FIELDS, "a mapping with strategy and limits"))
    ),
    "disk_size": Field(Parsed(quantities.disk_gib, "GiB above 0 such as 100, or 100GB", _NUMBER_OR_TEXT)),
    "disk_tier": Field(word(*DISK_TIERS)),
    "network_tier": Field(word("standard", "best")),
    "local_disk": Field(TEXT, inert=_NOT_HERE),
    "max_hourly_cost": Field(Number(positive=True, whole=False)),
    "ports": Field(
        Items(Parsed(_port, "a port or a range such as 8080-8090", (int, str)), alone=True),
        inert="accepted, but has no effect: nothing listens on a job's machines",
    ),
    "labels": Field(Table(TEXT, TEXT)),
    "image_id": Field(Either(TEXT, Table(TEXT, TEXT, allowed="a mapping from region to image"))),
    "autostop": Field(
        Either(
            FLAG,
            Number(low=-1),
            Parsed(quantities.minutes, "a duration such as 10m", (str,)),
            Record(AUTOSTOP_FIELDS, "a mapping with idle_minutes, down, wait_for"),
        ),
        inert=_ENDS,
    ),
    "hooks": Field(HOOKS, inert=_NOT_HERE),
    "priority": Field(Number(-1000, 1000)),
    "priority_class": Field(TEXT, inert="accepted, but has no effect: use `priority`"),
    "volumes": Field(
        Items(Record(RESOURCE_VOLUME_FIELDS, "volumes", required=("path",))),
        inert="accepted, but has no effect: use `file_mounts` with a bucket",
    ),
}
_ONE_PLACE = [("infra", name) for name in ("cloud", "region", "zone")] + [("accelerators", "gpus")]
ONE_RESOURCES = Record(RESOURCE_FIELDS, "resources", exclusive=_ONE_PLACE, finish=finish_resources)
ALTERNATIVES = Items(ONE_RESOURCES, at_least=1)

MOUNT_CACHED_FIELDS = {
    "transfers": Field(Number(low=1)),
    "vfs_read_chunk_streams": Field(Number(low=0)),
    "read_only": Field(FLAG),
} | {
    name: Field(Either(TEXT, Number(low=0)))
    for name in (
        "buffer_size",
        "vfs_cache_max_size",
        "vfs_cache_max_age",
        "vfs_read_ahead",
        "vfs_read_chunk_size",
        "vfs_write_back",
    )
}
STORAGE_CONFIG_FIELDS = {
    "mount_cached": Field(Record(MOUNT_CACHED_FIELDS)),
    "mount": Field(Record({"read_only": Field(FLAG), "hf_mount_args": Field(Items(TEXT), inert=_NOT_HERE)})),
}
STORAGE_MODES = ("MOUNT", "COPY", "MOUNT_CACHED")
STORAGE_TYPES = ("MODEL_CHECKPOINT_RO", "MODEL_CHECKPOINT_RW", "DATASET_RO", "DATASET_RW")
MOUNT_SOURCE = Parsed(read_mount_source, "a local path, or a bucket such as s3://bucket/folder")
# What the client makes of local paths before it submits a task.
UPLOADED = Record({"upload": Field(TEXT), "is_file": Field(FLAG)}, "an upload", marker="upload")
STORAGE_FIELDS = {
    "name": Field(Parsed(buckets.read_name, "a string that names a bucket")),
    "source": Field(
        Either(
            *(MOUNT_SOURCE, UPLOADED, Items(Either(TEXT, UPLOADED, allowed="local paths"), at_least=1)),
            allowed="a local path, a list of local paths, or a bucket such as s3://bucket/folder",
        )
    ),
    "store": Field(word(*buckets.STORES)),
    "persistent": Field(FLAG),
    "mode": Field(word(*STORAGE_MODES)),
    "type": Field(word(*STORAGE_TYPES)),
    "config": Field(Record(STORAGE_CONFIG_FIELDS)),
}
STORAGE = Record(STORAGE_FIELDS, "a bucket with name or source, mode, store", finish=finish_storage)

GIT_WORKDIR = Record({"url": Field(TEXT), "ref": Field(TEXT)}, "a mapping with the url and ref of a git repository",
                     required=("url",))  # fmt: skip

TASK_FIELDS = {
    "name": Field(NAME),
    "workdir": Field(Either(text("a string with a local path"), UPLOADED, GIT_WORKDIR)),
    "num_nodes": Field(Number(1, MOST_NODES)),
    "resources": Field(
        Record(
            RESOURCE_FIELDS | {"any_of": Field(ALTERNATIVES), "ordered": Field(ALTERNATIVES)},
            exclusive=[*_ONE_PLACE, ("any_of", "ordered")],
            finish=finish_all_resources,
            elsewhere=dict.fromkeys(
                ("num_nodes", "workdir", "setup", "run", "envs", "secrets", "file_mounts"), "at the top of the task"
            ),
        )
    ),
    "file_mounts": Field(
        Table(
            Parsed(read_mount_path, "the path where it appears on the machine", (str,)),
            Either(MOUNT_SOURCE, UPLOADED, STORAGE),
            allowed="a mapping from paths on the machine to local paths or buckets",
        )
    ),
    "volumes": Field(
        Table(TEXT, Either(TEXT, Anything())),
        inert="accepted, but has no effect: use `file_mounts` with a bucket",
    ),
    "setup": Field(text("a string with shell commands")),
    "run": Field(text("a string with shell commands")),
    "envs": Field(VARIABLES),
    "secrets": Field(SECRETS),
    "managed_secrets": Field(
        Either(Items(TEXT), Table(TEXT, Record({"mount_path": Field(TEXT)}))),
        inert="accepted, but has no effect: Perdure keeps no secrets; use `secrets` and --secret",
    ),
    "config": Field(Table(TEXT, Anything(), inert=_NOT_HERE, known={"hooks": HOOKS})),
    "service": Field(Table(TEXT, Anything(), nullable=True), inert=_JOBS_ONLY),
    "pool": Field(Table(TEXT, Anything(), nullable=True), inert=_JOBS_ONLY),
    "event_callback": Field(TEXT, inert="accepted, but has no effect: follow `perdure jobs queue` instead"),
    "inputs": Field(Table(TEXT, Number(low=0, whole=False)), inert=_NOT_HERE),
    "outputs": Field(Table(TEXT, Number(low=0, whole=False)), inert=_NOT_HERE),
    "api_server_access": Field(FLAG, inert="accepted, but has no effect: tasks get no access to the controller"),
}
TASK = Record(
    TASK_FIELDS,
    "a task: a mapping with run, setup, resources, …",
    elsewhere=dict.fromkeys(RESOURCE_FIELDS.keys() - TASK_FIELDS.keys(), "under `resources`")
    | dict.fromkeys(("execution", "primary_tasks"), "in a first document of its own, before the tasks"),
)

# The first document of a pipeline.
HEADER_FIELDS = {
    "name": Field(NAME),
    "execution": Field(word("serial", "parallel")),
    "primary_tasks": Field(Items(NAME)),
    "termination_delay": Field(Anything()),
    "inter_connection": Field(FLAG),
}
HEADER = Record(HEADER_FIELDS, "a mapping with the name of the job")
