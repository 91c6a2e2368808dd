"""The fields under `resources`, and the rules that need several of them.

The canonical form has one spelling for each request: `infra` for a place, `accelerators` for GPUs, a mapping for
`job_recovery`; `any_of` and `ordered` hold complete alternatives.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from perdure.sdk.spec import accelerators, infra
from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, InvalidValue, describe
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
)
from perdure.sdk.spec.values import alternatives, deadlines, quantities

Config = dict[str, Any]

STRATEGIES = ("FAILOVER", "EAGER_NEXT_REGION", "CHEAPEST", "SPREAD", "VALUE", "DEADLINE")
DISK_TIERS = ("low", "medium", "high", "ultra", "best", "none")

_SUPPORTED_CLOUDS = "local, AWS, Google Cloud, Azure, Kubernetes, and the clouds of installed packages"
_RENTED_CLOUDS = "AWS, Google Cloud, Azure"
ACTS_IN_LAUNCH = "it acts in `perdure launch`"
OF_CLUSTERS = f"accepted, but has no effect on jobs, whose machines are always terminated; {ACTS_IN_LAUNCH}"
_OPENED_FOR_CLUSTERS = f"accepted, but has no effect on jobs: nothing listens on their machines; {ACTS_IN_LAUNCH}"
NOT_MOUNTED = "it is not mounted, so what is written there is lost with the machine; use `file_mounts` with a bucket"
# The events of SkyPilot's hooks that happen to a job's machines, and at which the agent runs hooks.
HOOK_EVENTS = ("preemption", "down")
_NUMBER_OR_TEXT = (int, float, str)
_ACCELERATORS = Parsed(
    accelerators.parse, "A100, A100:8, 80GB+, {A100: 8}, a list, or several keys", (str, list, tuple, dict)
)


def _label(value: str) -> str:
    if not value.isprintable():
        raise InvalidValue(f"found {describe(value)}, which has a line break or another control character")
    return value


def _label_key(value: str) -> str:
    if re.match(r"(?i)perdure(?![a-z0-9])", value):
        raise InvalidValue(f"found {describe(value)}: Perdure finds its own machines and disks by such labels")
    return _label(value)


JOB_RECOVERY_FIELDS = {
    "strategy": Field(
        choice(*STRATEGIES, "none"),
        "Policy that chooses where the task runs. Default: DEADLINE if there is a `deadline`; otherwise VALUE if the "
        "cheapest spot offers that fit were observed within three days, or else CHEAPEST. `none` stands for the "
        "default too: recovery cannot be turned off.",
    ),
    "max_restarts_on_errors": Field(
        Number(low=0), "How often the task is restarted after `setup` or `run` has failed. Default: 0."
    ),
    "recover_on_exit_codes": Field(
        Items(Number(0, 255), allow_single=True, unique=True),
        "Exit codes after which the task is restarted, beyond `max_restarts_on_errors`. Default: none.",
    ),
    "deadline": Field(
        Parsed(deadlines.parse_deadline, deadlines.DEADLINE, (str, datetime)),
        "When the task must have ended. Implies `strategy: DEADLINE`, which changes to on-demand machines before it "
        "would be too late. Default: none.",
    ),
    "work": Field(
        Parsed(deadlines.parse_duration, deadlines.DURATION, (str,)),
        "How long the task runs if nothing is lost. Default: estimated from the progress of the checkpoints.",
        acted_on="strategies VALUE and DEADLINE",
    ),
    "on_time": deadlines.ON_TIME,
    "patience": Field(
        Number(low=0, whole=False),
        "How much later the task may end to save cost, as a share of its running time: 0.05 is 5 %. Default: 0.05.",
        acted_on="strategy VALUE",
    ),
    "move_cost": Field(
        Number(low=0, whole=False),
        "Cost in USD of transferring the task's data to another region. Default: 0.",
        acted_on="strategies VALUE and DEADLINE",
    ),
    **deadlines.LIMIT_FIELDS,
}
JOB_RECOVERY = Record(JOB_RECOVERY_FIELDS, "a mapping with strategy and limits")

AUTOSTOP = Record(
    {
        "idle_minutes": Field(Number(low=-1), "Idle time in minutes before the cluster stops."),
        "down": Field(FLAG, "Whether to terminate the cluster instead of stopping it."),
        "wait_for": Field(choice("jobs_and_ssh", "jobs", "none"), "What counts as activity."),
        "idle_below": Field(Number(0.1, 100, whole=False), "Jobs count only from this use (percent) on."),
        "hook": Field(
            *(TEXT, "Shell commands to run before the cluster stops."),
            refused="it does not run; write it under `config.hooks` with `events: [down]`",
        ),
        "hook_timeout": Field(Number(positive=True), "Time limit of `hook` in seconds."),
    },
    "a mapping with idle_minutes, down, wait_for, idle_below",
)


def _check_hook(config: Config, _raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    events = config.get("events")
    if events and not set(events) & set(HOOK_EVENTS):
        report.add_unsupported(path, "it never runs, since a job's machines do not stop; add `preemption` to `events`")
    elif events and "stop" in events:
        report.add_warning(
            (*path, "events"), "`stop`: accepted, but has no effect: a job's machines are terminated, not stopped"
        )
    return config


HOOK = Record(
    {
        "run": Field(
            matching(r"(?s).{1,16384}", "a string of at most 16 KiB"),
            "Shell commands that run on every node, with the environment of `run`. Their output goes to the job's log. "
            "A hook that fails is logged, and changes nothing else.",
        ),
        "events": Field(
            Items(choice("stop", *HOOK_EVENTS), unique=True),
            "When the commands run. `preemption`: when the machine is about to be taken away or replaced, before `run` "
            "gets SIGTERM. `down`: after `run` has ended, or has been stopped by a cancel. `stop`: never. Cached "
            "mounts are uploaded afterwards. Default: all.",
        ),
        "timeout": Field(
            Number(positive=True),
            "Time limit of the commands in seconds. Before a preemption, all hooks together get at most half of the "
            "time that is left. Default: 3600.",
        ),
    },
    "hooks",
    required=("run",),
    finish=_check_hook,
)
HOOKS = Items(HOOK, at_most=32)
RESOURCE_VOLUME = Record(
    {
        "name": Field(Anything(), "Name of the volume."),
        "path": Field(Anything(), "Path at which the volume is mounted."),
        "disk_size": Field(Anything(), "Size of the volume in GiB."),
        "disk_tier": Field(Anything(), "Performance tier of the volume."),
        "storage_type": Field(Anything(), "Kind of the volume."),
        "attach_mode": Field(Anything(), "Whether the volume is writable."),
        "auto_delete": Field(Anything(), "Whether to delete the volume with the cluster."),
    },
    "volumes",
    required=("path",),
)
ACCELERATOR_ARGS = Record(
    {
        "runtime_version": Field(TEXT, "Software version of a TPU."),
        "tpu_name": Field(TEXT, "Name of a TPU."),
        "tpu_vm": Field(FLAG, "Whether to use a TPU VM."),
        "gcp_queued_resource": Field(FLAG, "Whether to request the TPU as a queued resource."),
    }
)

_HIDDEN = Parsed(lambda _: "<redacted>", "a string")  # a password would be stored, and shown
_WRITTEN_BY_SKYPILOT = "Written by SkyPilot itself when it stores a task."
# Fields that SkyPilot adds to a YAML that it stores. A launch ignores them, with a warning.
INTERNAL_FIELDS = {
    "_cluster_config_overrides": Field(Table(TEXT, Anything()), _WRITTEN_BY_SKYPILOT, no_effect=NO_EFFECT),
    "_docker_login_config": Field(Table(TEXT, _HIDDEN), _WRITTEN_BY_SKYPILOT, no_effect=NO_EFFECT),
    "_is_image_managed": Field(FLAG, _WRITTEN_BY_SKYPILOT, no_effect=NO_EFFECT),
    "_no_missing_accel_warnings": Field(FLAG, _WRITTEN_BY_SKYPILOT, no_effect=NO_EFFECT),
    "_requires_fuse": Field(FLAG, _WRITTEN_BY_SKYPILOT, no_effect=NO_EFFECT),
}

# The fields of one alternative. `resources` itself also has `any_of` and `ordered`.
RESOURCE_FIELDS = {
    "infra": Field(
        Parsed(infra.parse, "cloud, cloud/region or cloud/region/zone, with * for any"),
        "Where to run. Default: anywhere that the controller can launch machines. SkyPilot's other clouds are "
        "accepted, but no machine is found there.",
        acted_on=_SUPPORTED_CLOUDS,
    ),
    "cloud": Field(
        Parsed(infra.cloud_name, "a cloud's name"),
        "The cloud, as in `infra`, which cannot be given at the same time. Default: any.",
        acted_on=_SUPPORTED_CLOUDS,
    ),
    "region": Field(Parsed(infra.place, "a region's name"), "The region, as in `infra`. Default: any."),
    "zone": Field(Parsed(infra.place, "a zone's name"), "The zone, as in `infra`. Default: any."),
    "instance_type": Field(TEXT, "The cloud's name for the machine type. Default: any type that fits."),
    "cpus": Field(
        Parsed(quantities.cpus, "a number above 0 such as 4, or 4+ for at least 4", _NUMBER_OR_TEXT),
        "vCPUs of each machine. Default: any number.",
    ),
    "memory": Field(
        Parsed(quantities.memory, "GiB such as 32, 32+ for at least that, or 64GB", _NUMBER_OR_TEXT),
        "Memory of each machine in GiB. Default: any amount.",
    ),
    "accelerators": Field(
        _ACCELERATORS,
        "Accelerators of each machine, with their number (default: 1). `80GB+` and `nvidia:40GB` select GPUs by the "
        "memory of each, instead of a name. The entries of a list are tried in order; "
        "several keys are alternatives that compete by price. The local cloud simulates those that its section of "
        "`config.yaml` lists. Default: machines without accelerators are allowed.",
    ),
    "gpus": Field(_ACCELERATORS, "Another name for `accelerators`."),
    "accelerator_args": Field(ACCELERATOR_ARGS, "Options of a TPU.", no_effect=NO_EFFECT),
    "use_spot": Field(FLAG, "Whether to run on spot (preemptible) machines. Default: false."),
    "job_recovery": Field(
        OneOf(choice(*STRATEGIES, "none"), JOB_RECOVERY),
        "How the task continues after preemptions and errors: the name of a strategy, or a mapping. "
        "Default: see `strategy`.",
    ),
    "disk_size": Field(
        Parsed(quantities.disk_gib, "GiB above 0 such as 100, or 100GB", _NUMBER_OR_TEXT),
        "Size of the boot disk in GiB. Default: 100.",
        acted_on=f"{_RENTED_CLOUDS}, Kubernetes",
    ),
    "ephemeral_storage": Field(
        Parsed(quantities.disk_gib, "GiB above 0 such as 50, or 50GB", _NUMBER_OR_TEXT),
        "Temporary disk space in GiB.",
        no_effect="accepted, but has no effect: use `disk_size`",
    ),
    "disk_tier": Field(
        choice(*DISK_TIERS),
        "Performance tier of the boot disk, which selects one of the cloud's disk types. Default: medium.",
        acted_on=_RENTED_CLOUDS,
    ),
    "network_tier": Field(
        choice("standard", "best"),
        "`best` requests Elastic Fabric Adapters on AWS, and gVNIC with Tier 1 bandwidth on Google Cloud, if the "
        "machine type supports them. `standard` turns off accelerated networking on Azure. Default: the cloud's own.",
        acted_on=f"{_RENTED_CLOUDS}, Kubernetes",
    ),
    "local_disk": Field(TEXT, "Local disk that the machine must have.", no_effect=NO_EFFECT),
    "max_hourly_cost": Field(
        Number(positive=True, whole=False),
        "Maximum price of one machine in USD per hour; more expensive offers are not used. Default: no limit.",
    ),
    "ports": Field(
        Items(Parsed(quantities.port, "a port or a range such as 8080-8090", (int, str)), allow_single=True),
        "Ports of a cluster's machines to open to the internet (AWS, Google Cloud, Azure). `perdure port-forward` "
        "reaches every port, open or not.",
        no_effect=_OPENED_FOR_CLUSTERS,
    ),
    "labels": Field(
        Table(Parsed(_label_key, "a string, not `perdure:…`"), Parsed(_label, "a string on one line")),
        "Tags of the machines. Google Cloud skips keys that are not valid there. The local cloud only records them. "
        "Default: none.",
    ),
    "image_id": Field(
        OneOf(TEXT, Table(TEXT, TEXT, allowed="a mapping from region to image")),
        "`docker:IMAGE`: the container that `setup` and `run` run in, on every cloud. Or the image of the machine: "
        "`ami-…` on AWS, `projects/…/global/images/…` on Google Cloud, `publisher:offer:sku:version` or an ID on "
        "Azure. Default: that of `config.yaml`, or else Ubuntu, with NVIDIA's driver if the machine has GPUs. With a "
        "mapping from region to image, only the regions that it names are used.",
        acted_on=f"{_RENTED_CLOUDS}, Kubernetes; `docker:` everywhere",
    ),
    "autostop": Field(
        OneOf(
            FLAG,
            Number(low=-1),
            Parsed(quantities.minutes, "a duration such as 10m", (str,)),
            AUTOSTOP,
        ),
        "When `perdure launch` stops an idle cluster: minutes, `true` for five, a duration, or a mapping.",
        no_effect=OF_CLUSTERS,
    ),
    "hooks": Field(
        HOOKS,
        "Commands to run when the machine stops or is preempted.",
        refused="they do not run; write them under `config`",
    ),
    "priority": Field(
        Number(-1000, 1000),
        "Jobs with a higher priority are launched first. Of several alternatives, the first one's counts. Default: 0.",
    ),
    "priority_class": Field(TEXT, "Name of a priority class.", no_effect="accepted, but has no effect: use `priority`"),
    "volumes": Field(Items(RESOURCE_VOLUME), "Volumes to attach to the machines.", refused=NOT_MOUNTED),
    **INTERNAL_FIELDS,
}
_EXCLUSIVE = [("infra", name) for name in ("cloud", "region", "zone")] + [("accelerators", "gpus")]

_NO_OPS: Final[dict[str, object]] = {
    "disk_tier": "none",
    "image_id": {},
    "job_recovery": {},
    "labels": {},
    "ports": [],
}


def canonical_resources(config: Config, _raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    """One spelling for each request: `infra` for places, `accelerators` for GPUs, a mapping for `job_recovery`."""
    if "gpus" in config:
        config["accelerators"] = config.pop("gpus")
    legacy = [config.pop(name, None) for name in ("cloud", "region", "zone")]
    if place := infra.join(*legacy):
        config["infra"] = place
    if "job_recovery" in config:
        config["job_recovery"] = _canonical_recovery(config["job_recovery"])
    if "docker:" in ([*images.values()] if isinstance(images := config.get("image_id"), dict) else [images]):
        report.add_problem((*path, "image_id"), "names no image", "write `docker:IMAGE`")
    if why := unsupported_image(config.get("image_id")):
        report.add_unsupported((*path, "image_id"), why)
    return config


def unsupported_image(image_id: str | dict[str, str] | None) -> str:
    """Why an image, or one of several, cannot be used; empty if it may."""
    images = image_id.values() if isinstance(image_id, dict) else [image_id or ""]
    is_tag = any(image.lower().startswith("skypilot:") for image in images)
    return "SkyPilot's image tags are not supported; write an image of the cloud" if is_tag else ""


def canonical_alternatives(config: Config, raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    """As `canonical_resources`, with the fields beside `any_of` or `ordered` merged into each alternative."""
    base = canonical_resources(config, raw, path, report)
    for kind in ("any_of", "ordered"):
        options = base.pop(kind, None)
        if options is not None:
            return _merge_alternatives(kind, base, options, path, report)
    _check_image_regions(base, path, report)
    deadlines.check(base.get("job_recovery") or {}, (*path, "job_recovery"), report)
    return without_defaults(base)


def _check_image_regions(config: Config, path: FieldPath, report: Report) -> None:
    """Report that a mapping from region to image has none for the region that is requested."""
    images, region = config.get("image_id"), infra.parts(config.get("infra"))[1]
    if images and isinstance(images, dict) and region and region.lower() not in map(str.lower, images):
        report.add_problem((*path, "image_id"), f"has no image for {region}", f"add one, or remove the region {region}")


def _merge_alternatives(
    kind: str, base: Config, options: list[Config | None], path: FieldPath, report: Report
) -> Config:
    if not alternatives.check_repetition(base, options, (*path, kind), report):
        return base
    complete = [without_defaults(base | (option or {})) for option in options]
    for index, config in enumerate(complete):
        _check_image_regions(config, (*path, kind, index), report)
    merged = alternatives.distinct(complete)
    for config in merged[:1]:
        deadlines.check(config.get("job_recovery") or {}, (*path, "job_recovery"), report)
    if any(config.get("job_recovery") != merged[0].get("job_recovery") for config in merged):
        fix = "write one `job_recovery` beside `" + kind + "`"
        report.add_problem((*path, kind), "the alternatives differ in job_recovery", fix)
    return merged[0] if len(merged) == 1 else {kind: merged}


def without_defaults(config: Config) -> Config:
    """Drop fields that request the default. Call it after merging, since an alternative may overrule them."""
    return {name: value for name, value in config.items() if value is not False and value != _NO_OPS.get(name)}


def _canonical_recovery(value: str | Config) -> Config:
    recovery = {"strategy": value} if isinstance(value, str) else dict(value)
    if recovery.get("strategy") == "none":
        del recovery["strategy"]
    if "deadline" in recovery:
        recovery.setdefault("strategy", "DEADLINE")
    return {name: item for name, item in recovery.items() if item not in ([], 0) or name == "strategy"}


ONE_RESOURCES = Record(RESOURCE_FIELDS, "resources", exclusive=_EXCLUSIVE, finish=canonical_resources)
_ALTERNATIVES = Items(ONE_RESOURCES, at_least=1, at_most=alternatives.MAX_ALTERNATIVES)
RESOURCES = Record(
    RESOURCE_FIELDS
    | {
        "any_of": Field(
            _ALTERNATIVES,
            f"At most {alternatives.MAX_ALTERNATIVES} alternatives that compete by price. Fields beside `any_of` apply "
            "to each alternative that does not overrule them; `job_recovery` must be the same in all.",
        ),
        "ordered": Field(_ALTERNATIVES, "As `any_of`, but earlier alternatives are tried first."),
    },
    exclusive=[*_EXCLUSIVE, ("any_of", "ordered")],
    finish=canonical_alternatives,
    elsewhere=dict.fromkeys(
        ("num_nodes", "workdir", "setup", "run", "envs", "secrets", "file_mounts"), "at the top of the task"
    ),
)
