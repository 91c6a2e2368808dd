"""What the fields of `resources` mean together: one spelling for each request, and alternatives spelled out."""

from __future__ import annotations

from typing import Any, Final

from perdure.sdk import deadlines, infra
from perdure.sdk.problems import Path
from perdure.sdk.report import Report

Config = dict[str, Any]


_NO_OPS: Final[dict[str, object]] = {
    "disk_tier": "none",
    "job_recovery": {},
    "labels": {},
    "ports": [],
}


def finish_resources(config: Config, _raw: dict[Any, Any], _path: Path, _report: Report) -> Config:
    """One spelling for each request: `infra` for places, `accelerators` for GPUs, a mapping for `job_recovery`."""
    if "gpus" in config:
        config["accelerators"] = config.pop("gpus")
    legacy = [config.pop(name, None) for name in ("cloud", "region", "zone")]
    place = infra.join(*legacy)
    if place:
        config["infra"] = place
    if "job_recovery" in config:
        config["job_recovery"] = _recovery(config["job_recovery"])
    return config


def finish_all_resources(config: Config, raw: dict[Any, Any], path: Path, report: Report) -> Config:
    """As `finish_resources`, with what stands beside `any_of` or `ordered` merged into each alternative."""
    base = finish_resources(config, raw, path, report)
    for kind in ("any_of", "ordered"):
        options = base.pop(kind, None)
        if options is not None:
            return _merged(kind, base, options, path, report)
    _warn_of_image(base, path, report)
    deadlines.check(base.get("job_recovery") or {}, (*path, "job_recovery"), report)
    return settled(base)


def _merged(kind: str, base: Config, options: list[Config | None], path: Path, report: Report) -> Config:
    merged: list[Config] = []
    for index, option in enumerate(options):
        config = settled(base | (option or {}))
        _warn_of_image(config, (*path, kind, index), report)
        if config not in merged:
            merged.append(config)
    for config in merged[:1]:
        deadlines.check(config.get("job_recovery") or {}, (*path, "job_recovery"), report)
    if any(config.get("job_recovery") != merged[0].get("job_recovery") for config in merged):
        fix = "write one `job_recovery` beside `" + kind + "`"
        report.problem((*path, kind), "the alternatives differ in job_recovery", fix)
    return merged[0] if len(merged) == 1 else {kind: merged}


def _warn_of_image(config: Config, path: Path, report: Report) -> None:
    if config.get("image_id") and infra.parts(config.get("infra"))[0] == "local":
        report.warning((*path, "image_id"), "accepted, but has no effect: the local cloud runs jobs on this machine")


def settled(config: Config) -> Config:
    """Without the fields that ask for what is so anyway. Not before merging: an alternative may overrule the base."""
    return {name: value for name, value in config.items() if value is not False and value != _NO_OPS.get(name)}


def _recovery(value: str | Config) -> Config:
    recovery = {"strategy": value} if isinstance(value, str) else dict(value)
    if recovery.get("strategy") == "none":
        del recovery["strategy"]
    if "deadline" in recovery:
        recovery.setdefault("strategy", "DEADLINE")
    return {name: item for name, item in recovery.items() if item not in ([], 0) or name == "strategy"}
