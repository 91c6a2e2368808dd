"""What the fields of a file mount mean together."""

from __future__ import annotations

from typing import Any

from perdure.sdk import buckets
from perdure.sdk.problems import Path, Refused, shown
from perdure.sdk.report import Report

Config = dict[str, Any]


def read_mount_path(value: str) -> str:
    """Where a mount appears. `Refused` for a place that would hide the machine's own files."""
    if value.strip() in ("", "/", "~", "~/", "."):
        raise Refused(f"found {shown(value)}")
    if buckets.is_uri(value):
        raise Refused(f"found the URI {shown(value)}", "write the path on the machine first: `/data: s3://bucket`")
    return value


def read_mount_source(value: str) -> str:
    """A local path as it is written, or a bucket's URI."""
    if not value.strip():
        raise Refused("found an empty text")
    return buckets.read_uri(value) if buckets.is_uri(value) else value


def finish_storage(config: Config, raw: dict[Any, Any], path: Path, report: Report) -> Config:
    config.setdefault("mode", "MOUNT")
    if config.get("persistent") is True:
        del config["persistent"]
    source = raw.get("source")
    if raw.get("name") is None and source is None:
        fix = "write the bucket's name after `name:`, or an existing bucket such as s3://my-bucket after `source:`"
        report.problem((*path, "name"), "the bucket has no name", fix)
    elif isinstance(source, list | tuple):
        _check_local_sources(source, path, report)
    if raw.get("name") is None and (isinstance(source, list | tuple) or (source and not buckets.is_uri(str(source)))):
        fix = "write the name of the bucket that the local files go to"
        report.problem((*path, "name"), "local files are the source, but the bucket has no name", fix)
    if isinstance(config.get("source"), str) and buckets.is_uri(config["source"]):
        _check_uri(config, path, report)
    _check_mode(config, path, report)
    return config


def _check_local_sources(sources: list[Any] | tuple[Any, ...], path: Path, report: Report) -> None:
    for index, source in enumerate(sources):
        if isinstance(source, str) and buckets.is_uri(source):
            fix = "mount each bucket at a path of its own"
            report.problem((*path, "source", index), f"found the bucket {shown(source)} in a list of files", fix)


def _check_uri(config: Config, path: Path, report: Report) -> None:
    uri = buckets.parse(config["source"])
    name, store = config.get("name"), config.get("store")
    if name and name != uri.bucket:
        message = f"{shown(name)} is not the bucket {uri.bucket!r} of `source`"
        report.problem((*path, "name"), message, "leave `name` out")
    if store and store != uri.store:
        message = f"{shown(store)} is not the store {uri.store} of `source`"
        report.problem((*path, "store"), message, "leave `store` out")


def _check_mode(config: Config, path: Path, report: Report) -> None:
    if config["mode"] == "MOUNT_CACHED":
        return
    if config.get("type"):
        message = f"has a meaning for MOUNT_CACHED only, and the mode is {config['mode']}"
        report.problem((*path, "type"), message, "write `mode: MOUNT_CACHED`, or leave `type` out", at_key=True)
    if config.get("config", {}).get("mount_cached"):
        report.warning((*path, "config", "mount_cached"), f"accepted, but has no effect: the mode is {config['mode']}")
