"""The task YAML as data: every field with its accepted forms, its meaning, and where it has an effect.

The fields are SkyPilot's. `resource_fields` and `file_mount_fields` hold `resources` and the entries of `file_mounts`.
The page "Task YAML" of the documentation is generated from these modules.
"""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatchcase
from typing import Any

from perdure.sdk.notify.events import EVENTS
from perdure.sdk.spec.file_mount_fields import FILE_MOUNTS, UPLOADED
from perdure.sdk.spec.problems import InvalidValue, choice_fix, describe
from perdure.sdk.spec.resource_fields import HOOKS, NOT_MOUNTED, RESOURCE_FIELDS, RESOURCES
from perdure.sdk.spec.service_fields import SERVICE
from perdure.sdk.spec.validators import (
    FLAG,
    NO_EFFECT,
    TEXT,
    Anything,
    Field,
    Items,
    Number,
    OneOf,
    Parsed,
    Record,
    Table,
    choice,
    matching,
    text,
)

MAX_SWEEP = 10_000  # jobs of one launch
_MAX_SWEEP_VARIABLES = 100
_MAX_WORDS_CHARS = 16_384  # `shlex` needs a microsecond for each
MAX_NODES = 10_000  # each is a row, a machine and a token: far more than any cloud gives to one task

_NOT_A_JOB = "it describes a service, which `perdure serve up` starts; launched otherwise, the task would run as a job"
_NO_POOLS = "Perdure has no pools, so the task would run as a job"
_ONE_AFTER_ANOTHER = "accepted, but has no effect: the tasks of a job run one after another"
_NAME = matching(
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    "a string of letters, digits, dots, dashes and underscores, with a letter or digit at both ends",
)


def _variable_name(value: Any) -> str:
    name = str(value)
    if isinstance(value, bool) or not name.isascii() or not name.isidentifier():
        raise InvalidValue(f"{describe(name)} is not a variable name")
    return name


def _managed_secret(value: str) -> str:
    prefix, _, name = value.rpartition("secrets:")
    if prefix:
        raise InvalidValue(f"found {describe(value)}")
    return _variable_name(name)


def _event(value: str) -> str:
    if not any(fnmatchcase(event, value) for event in EVENTS):
        raise InvalidValue(f"unknown event {describe(value)}", choice_fix(value, tuple(EVENTS)))
    return value


def _words(value: str) -> str:
    if len(value) > _MAX_WORDS_CHARS:
        raise InvalidValue(f"found {len(value)} characters", f"give at most {_MAX_WORDS_CHARS}")
    try:
        shlex.split(value)
    except ValueError as error:
        raise InvalidValue(f"{describe(value)}: {error}", "close the quotes") from None
    return value


def _python_version(value: str) -> str:
    if not re.fullmatch(r"3(\.[0-9]{1,2}){1,2}", value):
        raise InvalidValue(f"{describe(value)} is not a version of Python", "write 3.11, or 3.11.9")
    return value


# A value may be any YAML scalar, and becomes its text. Null means that the caller has to give the value.
_VARIABLE_NAME = Parsed(_variable_name, "letters, digits and underscores, no digit first", (str, int))
_VARIABLE_VALUE = Parsed(str, "text, a number or a boolean", (str, int, float, bool))
VARIABLES = Table(_VARIABLE_NAME, _VARIABLE_VALUE, nullable=True)
_SECRET_NAME = Parsed(_managed_secret, "a variable's name, or secrets:NAME", (str,))
SECRETS = OneOf(Table(_SECRET_NAME, _VARIABLE_VALUE, nullable=True), Items(_SECRET_NAME))

GIT_WORKDIR = Record(
    {
        "url": Field(TEXT, "URL of the repository. A token in it, `https://user:token@…`, is stored encrypted."),
        "ref": Field(TEXT, "Branch, tag or commit to check out. Default: the repository's default branch."),
    },
    "a mapping with the url and ref of a git repository",
    required=("url",),
)
_CHANNELS = Items(TEXT, allow_single=True, unique=True, at_least=1)
NOTIFY = Record(
    {
        "to": Field(_CHANNELS, "Names of channels."),
        "when": Field(
            Items(Parsed(_event, f"one of {', '.join(EVENTS)}, or `job.*`", (str,)), allow_single=True, at_least=1),
            "Events to be told of; `job.*` stands for all. Default: the end, waiting, being late or stuck, and the "
            "budget.",
        ),
    },
    "a mapping with `to`",
    required=("to",),
    marker="to",
)
RUNTIME = Record(
    {
        "python": Field(
            Parsed(_python_version, 'a string such as "3.11" or "3.11.9"', (str,)),
            "Version of Python of the machine's environment. uv takes it from the image, or else from its own builds. "
            "Default: the Python of the image.",
        )
    },
    "a mapping with `python`",
)
MANAGED_SECRET = Record({"mount_path": Field(TEXT, "Path of the file that holds the secret.")})

# Their content is checked by the controller, which knows the fields of a pod.
POD_SETTINGS = (
    *("pod_config", "provision_timeout", "custom_metadata", "kueue", "quota", "dws", "remote_identity"),
    "set_pod_resource_limits",
)
DOCKER = Table(
    TEXT,
    Anything(),
    no_effect=NO_EFFECT,
    known={"run_options": Items(Parsed(_words, "options of `docker run`", (str,)), allow_single=True, at_most=200)},
)
KUBERNETES = Table(TEXT, Anything(), no_effect=NO_EFFECT, known=dict.fromkeys(POD_SETTINGS, Anything()))

TASK_FIELDS = {
    "name": Field(_NAME, "Name of the task. Default: the job's name; in a pipeline, `<job>-<index>`."),
    "workdir": Field(
        OneOf(text("a string with a local path"), UPLOADED, GIT_WORKDIR),
        "Local folder that is uploaded to `~/sky_workdir` of every node, with its symbolic links and empty folders, or "
        "git repository that is cloned there. `setup` and `run` start in it. Default: an empty folder.",
    ),
    "num_nodes": Field(
        Number(1, MAX_NODES), "Number of machines, all in one zone. They are replaced together. Default: 1."
    ),
    "resources": Field(RESOURCES, "What machines to use. Default: any machine, on-demand."),
    "file_mounts": Field(
        FILE_MOUNTS,
        "Files and buckets on the nodes, by path: a local path is uploaded, a bucket's URI is copied, and a mapping "
        "mounts a bucket; at most 1,000. Default: none.",
    ),
    "volumes": Field(
        Table(TEXT, OneOf(TEXT, Anything())),
        "Volumes to mount, by path.",
        refused=NOT_MOUNTED,
    ),
    "volume_mounts": Field(Items(Anything()), "`volumes` in a YAML that SkyPilot has written.", refused=NOT_MOUNTED),
    "setup": Field(
        text("a string with shell commands"),
        "Shell commands that run on every node before `run`, in every attempt. Default: none.",
    ),
    "run": Field(
        text("a string with shell commands"), "Shell commands that run on every node at the same time. Default: none."
    ),
    "runtime": Field(
        RUNTIME,
        "The Python of `setup` and `run`; see [What a machine offers](../guides/machines.md). Default: `python`, "
        "`pip`, `uv` and `conda` with the Python of the image.",
    ),
    "envs": Field(
        VARIABLES,
        "Environment variables of `setup` and `run`. `${NAME}` is replaced in `workdir` and `file_mounts`. A variable "
        "without a value has to be given with `--env`. Default: none.",
    ),
    "secrets": Field(
        SECRETS,
        "As `envs`, but encrypted in the database and given with `--secret`. A list names secrets without values. "
        "Default: none.",
    ),
    "managed_secrets": Field(
        Items(OneOf(TEXT, Table(TEXT, MANAGED_SECRET), allowed="a name, or {NAME: {mount_path: /path}}")),
        "Secrets that SkyPilot's server stores.",
        no_effect="accepted, but has no effect: Perdure keeps no secrets; use `secrets` and --secret",
    ),
    "config": Field(
        Table(
            TEXT, Anything(), no_effect=NO_EFFECT, known={"hooks": HOOKS, "kubernetes": KUBERNETES, "docker": DOCKER}
        ),
        "`hooks`: commands to run before a machine goes away. `kubernetes`: settings of pods, such as `pod_config`. "
        "`docker.run_options`: options of `docker run` for `image_id: docker:…`. "
        "The other settings of SkyPilot's client have no effect.",
    ),
    "service": Field(SERVICE, "The service that `perdure serve up` starts.", refused=_NOT_A_JOB),
    "pool": Field(Table(TEXT, Anything(), nullable=True), "A pool of workers.", refused=_NO_POOLS),
    "event_callback": Field(
        TEXT,
        "Shell commands that the controller runs when the job's status changes, with SkyPilot's variables such as "
        "`JOB_STATUS`. A controller that others can reach does so only with `notify.event_callback`. Default: none.",
    ),
    "notify": Field(
        OneOf(_CHANNELS, NOTIFY),
        "Notification channels of the controller's `config.yaml` that receive the events of the job: names, or a "
        "mapping with `to` and `when`. Default: none.",
    ),
    "sweep": Field(
        Table(
            _VARIABLE_NAME,
            Items(_VARIABLE_VALUE, unique=True, at_least=1, at_most=MAX_SWEEP),
            at_most=_MAX_SWEEP_VARIABLES,
        ),
        "A grid: environment variable → the values that it takes. A launch has one job for each combination, as with "
        f"`--num-jobs`: at most {MAX_SWEEP:,}. Default: none.",
    ),
    "inputs": Field(Table(TEXT, Number(low=0, whole=False)), "Input data and its size in GB.", no_effect=NO_EFFECT),
    "outputs": Field(Table(TEXT, Number(low=0, whole=False)), "Output data and its size in GB.", no_effect=NO_EFFECT),
    "api_server_access": Field(
        FLAG,
        "Whether the task may call the controller.",
        no_effect="accepted, but has no effect: tasks get no access to the controller",
    ),
    "file_mounts_mapping": Field(
        Anything(),
        "Where SkyPilot's server has stored uploaded files, in a YAML that it has written.",
        no_effect=NO_EFFECT,
    ),
    "_metadata": Field(Anything(), "Notes of SkyPilot in a YAML that it has written.", no_effect=NO_EFFECT),
}
TASK = Record(
    TASK_FIELDS,
    "a task: a mapping with run, setup, resources, …",
    elsewhere=dict.fromkeys(RESOURCE_FIELDS.keys() - TASK_FIELDS.keys(), "under `resources`")
    | dict.fromkeys(("execution", "primary_tasks"), "in a first document of its own, before the tasks"),
)

# The first document of a pipeline.
HEADER_FIELDS = {
    "name": Field(_NAME, "Name of the job. Default: none."),
    "execution": Field(
        choice("serial", "parallel"),
        "`serial` runs each task after the one before has succeeded. `parallel` is rejected. Default: serial.",
    ),
    "primary_tasks": Field(Items(_NAME), "The tasks whose end ends a parallel job.", no_effect=_ONE_AFTER_ANOTHER),
    "termination_delay": Field(
        Anything(), "How long the other tasks of a parallel job go on.", no_effect=_ONE_AFTER_ANOTHER
    ),
    "inter_connection": Field(
        FLAG, "Whether the tasks of a parallel job reach each other.", no_effect=_ONE_AFTER_ANOTHER
    ),
}
HEADER = Record(HEADER_FIELDS, "a mapping with the name of the job")
