"""The page of the task YAML, from the schema that the SDK validates it with."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.sdk.spec import file_mount_fields, resource_fields, task_fields
from perdure.sdk.spec import service_fields as schema_service
from perdure.sdk.spec.validators import Field, Items, OneOf, Record, Table, Validator

_SKYPILOT = "Perdure accepts this mapping so that a task written for SkyPilot runs unchanged, and does not act on it."

# Title, text and mapping of each table. A field whose value is one of these mappings links to its table.
SECTIONS: tuple[tuple[str, str, Record], ...] = (
    (
        "Task",
        "The top of the file. A file with several tasks is a pipeline: the tasks are documents, divided by `---`.",
        task_fields.TASK,
    ),
    ("resources", "The machines of a task.", resource_fields.RESOURCES),
    ("job_recovery", "How a task continues. [Policies](../concepts/policies.md) explains the strategies.",
     resource_fields.JOB_RECOVERY),
    ("file_mounts entry", "A bucket on the nodes. [Buckets](../guides/buckets.md) explains stores and modes.",
     file_mount_fields.STORAGE),
    ("Storage config", "`config` of a `file_mounts` entry.", file_mount_fields.STORAGE_CONFIG),
    ("config.mount", "Options for `mode: MOUNT`.", file_mount_fields.MOUNT),
    ("config.mount_cached", "Options for `mode: MOUNT_CACHED`. Sizes and durations are written as rclone writes them.",
     file_mount_fields.MOUNT_CACHED),
    ("Git repository", "`workdir` as a repository.", task_fields.GIT_WORKDIR),
    ("Upload", "What the client puts in place of a local path before it submits a task. Files do not contain it.",
     file_mount_fields.UPLOADED),
    ("runtime", "`runtime`: see [What a machine offers](../guides/machines.md).", task_fields.RUNTIME),
    ("service", "A service. [Services](../guides/services.md) explains it; `perdure serve up` starts it.",
     schema_service.SERVICE),
    ("readiness_probe", "How the agent of a replica finds out whether it is ready.", schema_service.PROBE),
    ("replica_policy", "How many replicas there are. The names and formulas are SkyServe's.", schema_service.POLICY),
    ("load_balancer", "Settings of the proxy.", schema_service.LOAD_BALANCER),
    ("tls", "The certificate of the endpoint.", schema_service.TLS),
    ("notify", "`notify` with events. [Notifications](../guides/notifications.md) explains channels.",
     task_fields.NOTIFY),
    ("Pipeline header", "The first document of a pipeline, if the job has a name of its own.", task_fields.HEADER),
    ("autostop", "When an idle cluster stops. [Clusters](../guides/clusters.md) explains it. Managed jobs ignore it.",
      resource_fields.AUTOSTOP),
    ("hooks entry", "`config.hooks`: commands to run on the nodes before they go away.", resource_fields.HOOK),
    ("resources.volumes entry", _SKYPILOT, resource_fields.RESOURCE_VOLUME),
    ("accelerator_args", _SKYPILOT, resource_fields.ACCELERATOR_ARGS),
    ("managed_secrets entry", _SKYPILOT, task_fields.MANAGED_SECRET),
)  # fmt: skip
_TITLES: dict[Validator, str] = {record: title for title, _, record in SECTIONS}
_TITLES[resource_fields.ONE_RESOURCES] = "resources"

# Cloud → its name in `Field.acted_on`.
CLOUDS = {"local": "local", "aws": "AWS", "gcp": "Google Cloud", "azure": "Azure", "kubernetes": "Kubernetes"}
YES, NO_EFFECT, REFUSED = "yes", "no effect", "refused"
# Fields whose values decide: path → the effect of the values.
_BY_VALUE = {
    "resources.image_id": ("`skypilot:…`", REFUSED),
    "config.hooks": ("only `stop`", REFUSED),
}


def page() -> str:
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Task YAML"
    yield ""
    yield (
        "Every field of SkyPilot's task YAML is accepted. A launch prints a warning for each field without effect; the "
        "last column says why. `everywhere`: on every cloud and in every mode. Where results could be lost or another "
        "program would run, the launch is refused, unless `--ignore FIELD` leaves the field out. [What each cloud "
        "does](#what-each-cloud-does) lists all fields by cloud."
    )
    yield ""
    for title, text, record in SECTIONS:
        yield f"## {title}"
        yield ""
        yield text
        yield ""
        is_inert = text == _SKYPILOT
        yield "| field | allowed values | meaning |" + ("" if is_inert else " effect |")
        yield "|---|---|---|" + ("" if is_inert else "---|")
        for name, field in record.fields.items():
            where = "" if is_inert else f" {_where(field)} |"
            yield f"| `{name}` | {_allowed(field.validator)} | {_cell(field.meaning)} |{where}"
        yield ""
    yield from _cloud_table()


def _cloud_table() -> Iterator[str]:
    yield "## What each cloud does"
    yield ""
    yield (
        f"`{YES}`: it acts as described above. `{NO_EFFECT}`: a launch that may use the cloud prints a warning. "
        f"`{REFUSED}`: the task is not launched without `--ignore`."
    )
    yield ""
    yield f"| field | {' | '.join(CLOUDS.values())} |"
    yield "|---" * (len(CLOUDS) + 1) + "|"
    for path, effects in effects_by_cloud().items():
        yield f"| `{path}` | {' | '.join(effects[cloud] for cloud in CLOUDS)} |"
        if path in _BY_VALUE:
            values, effect = _BY_VALUE[path]
            yield f"| `{path}`: {values} | {' | '.join(effect for _ in CLOUDS)} |"
    yield ""


def effects_by_cloud() -> dict[str, dict[str, str]]:
    """Path of a field in the task YAML → cloud → what happens there. `*` stands for a name that the user chooses."""
    return dict(_effects(task_fields.TASK, ""))


def _effects(record: Record, place: str) -> Iterator[tuple[str, dict[str, str]]]:
    for name, field in record.fields.items():
        if isinstance(field.validator, Table) and field.validator.known:
            yield from ((f"{place}{name}.{key}", _effect_of_known(key)) for key in field.validator.known)
            yield f"{place}{name}.*", dict.fromkeys(CLOUDS, NO_EFFECT)
        else:
            yield f"{place}{name}", {cloud: _effect(field, title) for cloud, title in CLOUDS.items()}
        if field.refused or name in ("any_of", "ordered"):
            continue
        for inner, prefix in _records_in(field.validator, f"{place}{name}"):
            inner_effects = _effects(inner, f"{prefix}.")
            yield from (one for one in inner_effects if not field.no_effect or REFUSED in one[1].values())


def _effect_of_known(key: str) -> dict[str, str]:
    """A key that is the name of a cloud has an effect there alone."""
    return {cloud: YES if key not in CLOUDS or key == cloud else NO_EFFECT for cloud in CLOUDS}


def _records_in(validator: Validator, path: str) -> Iterator[tuple[Record, str]]:
    """The mappings with known fields that a value at `path` may hold, each with its path."""
    match validator:
        case file_mount_fields.UPLOADED:
            return
        case Record():
            yield validator, path
        case Table():
            yield from _records_in(validator.value, f"{path}.*")
            for name, known in validator.known.items():
                yield from _records_in(known, f"{path}.{name}")
        case _:
            for child in children(validator):
                yield from _records_in(child, path)


def _effect(field: Field, cloud: str) -> str:
    if field.refused:
        return REFUSED
    is_of_clouds = any(title in field.acted_on for title in CLOUDS.values())
    return NO_EFFECT if field.no_effect or (is_of_clouds and cloud not in field.acted_on) else YES


def _where(field: Field) -> str:
    table = field.validator
    if field.refused:
        return _cell(f"refused: {field.refused}")
    no_effect = field.no_effect or (table.no_effect if isinstance(table, Table) and not table.known else "")
    return _cell(no_effect.removeprefix("accepted, but has ") or field.acted_on or "everywhere")


def _allowed(validator: Validator) -> str:
    links = [f"[{title}](#{_anchor(title)})" for title in dict.fromkeys(_linked_titles(validator))]
    return _cell(validator.allowed) + (f" (see {', '.join(links)})" if links else "")


def _linked_titles(validator: Validator) -> Iterator[str]:
    """The titles of the tables of the mappings that a value may hold."""
    if validator in _TITLES:
        yield _TITLES[validator]
    for child in children(validator):
        yield from _linked_titles(child)


def children(validator: Validator) -> list[Validator]:
    """The validators of a value's parts, except of the fields of a mapping."""
    match validator:
        case OneOf():
            return list(validator.validators)
        case Items():
            return [validator.item]
        case Table():
            return [validator.key, validator.value, *validator.known.values()]
        case _:
            return []


def _anchor(title: str) -> str:
    """The anchor that the site's generator gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _cell(text: str) -> str:
    escaped = " ".join(text.split()).replace("|", "\\|")
    return escaped if "`" in escaped else escaped.replace("<", "&lt;")
