"""The entries of `file_mounts`, and the rules that need several of their fields."""

from __future__ import annotations

from typing import Any

from perdure.sdk.spec import buckets
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
)
from perdure.sdk.spec.values import quantities

Config = dict[str, Any]

STORAGE_MODES = ("MOUNT", "COPY", "MOUNT_CACHED")
STORAGE_TYPES = ("MODEL_CHECKPOINT_RO", "MODEL_CHECKPOINT_RW", "DATASET_RO", "DATASET_RW")
WITHOUT_EFFECT = ("_force_delete", "_is_sky_managed")  # fields that SkyPilot adds to a YAML that it stores
_CACHED = "mode MOUNT_CACHED"
_OF_A_VOLUME = "accepted, but has no effect: a bucket has no disk"
_SIZE = Parsed(quantities.rclone_size, "a size such as 64M, in bytes with K, M, G or T, or `off`", (int, float, str))
_DURATION = Parsed(quantities.rclone_duration, "a duration such as 90s, 10m or 1h30m, or `off`", (int, float, str))

MOUNT_CACHED = Record(
    {
        "transfers": Field(
            Number(low=1), "How many files are uploaded at the same time. Default: that of `type`, or 4."
        ),
        "vfs_read_chunk_streams": Field(
            Number(low=0),
            "How many parts of a file are downloaded at the same time; 0 reads one after another. "
            "Default: that of `type`, or 0.",
        ),
        "read_only": Field(FLAG, "Whether writing is refused. Default: that of `type`, or false."),
        "buffer_size": Field(_SIZE, "Read-ahead in memory per open file, such as 64M. Default: 16M."),
        "vfs_cache_max_size": Field(_SIZE, "Size of the cache on the node's disk, such as 50G. Default: 10G."),
        "vfs_cache_max_age": Field(_DURATION, "How long unused files stay in the cache, such as 2h. Default: 1h."),
        "vfs_read_ahead": Field(_SIZE, "Read-ahead on the disk beyond `buffer_size`, such as 1G. Default: 0."),
        "vfs_read_chunk_size": Field(
            _SIZE, "Size of the first part of a file that is requested, such as 32M. Default: that of `type`, or 128M."
        ),
        "vfs_write_back": Field(_DURATION, "How long after a file is closed its upload starts. Default: 1s."),
        "flush_every": Field(
            _DURATION,
            "How long writes to a file that stays open, or is written again and again, may be missing in the bucket. "
            "Default: 30s, or twice `vfs_write_back` if that is longer.",
        ),
    }
)
MOUNT = Record(
    {
        "read_only": Field(FLAG, "Whether writing is refused. Default: false."),
        "hf_mount_args": Field(Items(TEXT), "Arguments for mounting from Hugging Face.", no_effect=NO_EFFECT),
    }
)
STORAGE_CONFIG = Record(
    {
        "mount_cached": Field(
            MOUNT_CACHED,
            "Options of rclone for the cached mount. On a node without FUSE, where a local bucket becomes a symbolic "
            "link, they have no effect.",
            acted_on=_CACHED,
        ),
        "mount": Field(MOUNT, "Options of the mount.", acted_on="mode MOUNT"),
        "disk_size": Field(Anything(), "Size of a volume in GiB.", no_effect=_OF_A_VOLUME),
        "disk_tier": Field(Anything(), "Performance tier of a volume.", no_effect=_OF_A_VOLUME),
        "storage_type": Field(Anything(), "Kind of a volume.", no_effect=_OF_A_VOLUME),
        "attach_mode": Field(Anything(), "Whether a volume is writable.", no_effect=_OF_A_VOLUME),
    }
)
UPLOADED = Record(
    {
        "upload": Field(TEXT, "SHA-256 of the uploaded archive."),
        "is_file": Field(FLAG, "Whether the archive holds one file rather than a folder. Default: false."),
    },
    "an upload",
    marker="upload",
)


def validate_mount_path(value: str) -> str:
    """Return the path of a mount unchanged. Raises InvalidValue for one that would hide the machine's own files."""
    if value.strip() in ("", "/", "~", "~/", "."):
        raise InvalidValue(f"found {describe(value)}")
    if buckets.is_uri(value):
        raise InvalidValue(
            f"found the URI {describe(value)}", "write the path on the machine first: `/data: s3://bucket`"
        )
    return value


def validate_mount_source(value: str) -> str:
    """Return a local path or a bucket's URI unchanged. Raises InvalidValue."""
    if not value.strip():
        raise InvalidValue("found an empty string")
    return buckets.validate_uri(value) if buckets.is_uri(value) else value


def check_storage(config: Config, raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    """Report fields that contradict each other, and return the canonical configuration."""
    config.setdefault("mode", "MOUNT")
    _resolve_sub_path(config, path, report)
    if config.get("persistent") is True:
        del config["persistent"]
    source = raw.get("source")
    if raw.get("name") is None and source is None:
        fix = "write the bucket's name after `name:`, or an existing bucket such as s3://my-bucket after `source:`"
        report.add_problem((*path, "name"), "the bucket has no name", fix)
    elif isinstance(source, list | tuple):
        _check_local_sources(source, path, report)
    if raw.get("name") is None and (isinstance(source, list | tuple) or (source and not buckets.is_uri(str(source)))):
        fix = "write the name of the bucket that the local files go to"
        report.add_problem((*path, "name"), "local files are the source, but the bucket has no name", fix)
    if isinstance(config.get("source"), str) and buckets.is_uri(config["source"]):
        _check_uri(config, path, report)
    _check_mode(config, path, report)
    return config


def _resolve_sub_path(config: Config, path: FieldPath, report: Report) -> None:
    """Add the folder that SkyPilot stores beside a bucket's URI to the URI."""
    folder = config.pop("_bucket_sub_path", "").strip("/")
    source = config.get("source")
    if not folder:
        return
    if not (isinstance(source, str) and buckets.is_uri(source)):
        fix = "write the bucket with its folder as `source`, such as s3://my-bucket/folder"
        report.add_problem((*path, "_bucket_sub_path"), "names a folder, but `source` is no bucket", fix)
    elif (prefix := buckets.parse(source).prefix) and prefix != folder:
        message = f"{describe(folder)} is not the folder {prefix!r} of `source`"
        report.add_problem((*path, "_bucket_sub_path"), message, "keep one of them")
    elif not prefix:
        config["source"] = f"{source.rstrip('/')}/{folder}"


def _check_local_sources(sources: list[Any] | tuple[Any, ...], path: FieldPath, report: Report) -> None:
    for index, source in enumerate(sources):
        if isinstance(source, str) and buckets.is_uri(source):
            fix = "mount each bucket at a path of its own"
            report.add_problem((*path, "source", index), f"found the bucket {describe(source)} in a list of files", fix)


def _check_uri(config: Config, path: FieldPath, report: Report) -> None:
    uri = buckets.parse(config["source"])
    name, store = config.get("name"), config.get("store")
    if name and name != uri.bucket:
        message = f"{describe(name)} is not the bucket {uri.bucket!r} of `source`"
        report.add_problem((*path, "name"), message, "remove `name`")
    if store and store != uri.store:
        message = f"{describe(store)} is not the store {uri.store} of `source`"
        report.add_problem((*path, "store"), message, "remove `store`")


def _check_mode(config: Config, path: FieldPath, report: Report) -> None:
    if config["mode"] != "MOUNT" and config.get("config", {}).get("mount"):
        report.add_warning((*path, "config", "mount"), f"accepted, but has no effect: the mode is {config['mode']}")
    if config["mode"] == "MOUNT_CACHED":
        return
    if config.get("type"):
        message = f"has a meaning for MOUNT_CACHED only, and the mode is {config['mode']}"
        report.add_problem((*path, "type"), message, "write `mode: MOUNT_CACHED`, or remove `type`", at_key=True)
    if config.get("config", {}).get("mount_cached"):
        report.add_warning(
            (*path, "config", "mount_cached"), f"accepted, but has no effect: the mode is {config['mode']}"
        )


MOUNT_SOURCE = Parsed(validate_mount_source, "a local path, or a bucket such as s3://bucket/folder")
STORAGE = Record(
    {
        "name": Field(
            Parsed(buckets.validate_name, "a string that names a bucket"),
            "Name of the bucket, which is created if it does not exist. Required unless `source` is a bucket.",
        ),
        "source": Field(
            OneOf(
                *(MOUNT_SOURCE, UPLOADED, Items(OneOf(TEXT, UPLOADED, allowed="local paths"), at_least=1)),
                allowed="a local path, a list of local paths, or a bucket such as s3://bucket/folder",
            ),
            "An existing bucket, or local files to upload to the bucket `name` before the first launch. "
            "Default: nothing is uploaded.",
        ),
        "store": Field(
            choice(*buckets.STORES),
            "Store of the bucket `name`. Default: `default_store` of `config.yaml`. Other stores are rejected when the "
            "job is submitted.",
            acted_on="S3, GCS, AZURE, R2, OCI, NEBIUS, COREWEAVE, VASTDATA, LOCAL",
        ),
        "persistent": Field(
            FLAG,
            "Whether the bucket outlives the job. `false` removes it when the job ends, if the job created it. "
            "Default: true.",
        ),
        "mode": Field(
            choice(*STORAGE_MODES),
            "`MOUNT`: reads and writes go to the bucket. `MOUNT_CACHED`: writes go to the node's disk and are uploaded "
            "in the background. `COPY`: copied to the node before `setup`; changes stay there. Default: MOUNT.",
        ),
        "type": Field(
            choice(*STORAGE_TYPES),
            "Preset of `config.mount_cached` for checkpoints or data sets; the RO types are read-only. Default: none.",
            acted_on=_CACHED,
        ),
        "config": Field(STORAGE_CONFIG, "Options of the mount. Default: none."),
        "_bucket_sub_path": Field(TEXT, "Folder in the bucket `source`, in a YAML that SkyPilot has stored."),
        "_force_delete": Field(
            FLAG,
            "Whether SkyPilot deletes the bucket, in a YAML that it has stored.",
            no_effect="accepted, but has no effect: use `persistent: false`",
        ),
        "_is_sky_managed": Field(
            FLAG,
            "Whether SkyPilot has created the bucket, in a YAML that it has stored.",
            no_effect="accepted, but has no effect: a bucket is removed only if the job has created it",
        ),
    },
    "a bucket with name or source, mode, store",
    finish=check_storage,
)
FILE_MOUNTS = Table(
    Parsed(validate_mount_path, "the path where it appears on the machine", (str,)),
    OneOf(MOUNT_SOURCE, UPLOADED, STORAGE),
    allowed="a mapping from paths on the machine to local paths or buckets",
    at_most=1_000,
)
