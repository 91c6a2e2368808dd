"""Limits from config.yaml: the calls and machines of each cloud, the jobs of each user, what one job may use.

```yaml
limits: {max_jobs_per_user: 2000, max_running_jobs_per_user: 100, requests_per_second: 50}  # of each user
limits: {recoveries_per_hour: 20, max_log_gib: 2}                                           # of each job
aws: {max_concurrent_calls: 64, max_machines: 200}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.recovery.job import DEFAULT_RECOVERIES_PER_HOUR
from perdure.sdk.connection.installation import installed_clouds

DEFAULT_CONCURRENT_CALLS = 64
DEFAULT_REQUESTS_PER_SECOND = 50.0
CLOUD_LIMITS = ("max_concurrent_calls", "max_machines")  # keys of every cloud's section
# Calls for buckets also wait for the database, so more of them at a time are not faster.
_STORAGE_CONCURRENT_CALLS = 16
_MIN_PER_HOUR = 2

LIMIT_KEYS = (
    ConfigKey(
        "limits.max_jobs_per_user",
        "whole number",
        "null (no limit)",
        "How many unfinished jobs a user may have.",
        "jobs",
    ),
    ConfigKey(
        "limits.max_running_jobs_per_user",
        "whole number",
        "null (no limit)",
        "How many of a user's jobs may have machines; launches of further jobs wait.",
        "jobs",
    ),
    ConfigKey(
        "limits.requests_per_second",
        "number, or null (no limit)",
        f"{DEFAULT_REQUESTS_PER_SECOND:g}",
        "How often a named user may call the API; ten seconds' worth may come at once. More are refused (429).",
        "1/s",
    ),
    ConfigKey(
        "limits.recoveries_per_hour",
        "whole number from 2, or null (no limit)",
        str(DEFAULT_RECOVERIES_PER_HOUR),
        "How often a task may recover or restart in an hour. Half of them may follow each other at once; after that, "
        "the next attempt waits, and the timeline says so.",
        "recoveries",
    ),
    ConfigKey(
        "limits.max_log_gib",
        "number, or null (no limit)",
        "2",
        "How much a node's output in one attempt may take, with its index or the rows of a database. The log is cut "
        "there, with a mark, and the job goes on.",
        "GiB",
    ),
    ConfigKey(
        "limits.disk_reserve_gib",
        "number",
        "0.5",
        "While PERDURE_HOME's disk has less free space (or less than a tenth of a small disk), jobs' output stays on "
        "their nodes; all else works.",
        "GiB",
    ),
)


@dataclass(frozen=True)
class JobBounds:
    """What one job may use, however its nodes behave. None means no limit."""

    recoveries_per_hour: int | None = DEFAULT_RECOVERIES_PER_HOUR  # of a task
    max_log_bytes: int | None = 2 * 2**30  # of a node's log in one attempt
    disk_reserve_bytes: int = 2**29  # free space of PERDURE_HOME's disk below which no log is stored


@dataclass(frozen=True)
class Quotas:
    """None, and a cloud that a mapping does not contain, mean no limit."""

    max_jobs_per_user: int | None = None  # unfinished jobs
    max_running_jobs_per_user: int | None = None  # jobs that have machines
    max_concurrent_calls: Mapping[str, int] = field(default_factory=dict)  # by cloud
    max_machines: Mapping[str, int] = field(default_factory=dict)  # by cloud
    requests_per_second: float | None = DEFAULT_REQUESTS_PER_SECOND  # of a named user, on each controller

    def concurrency_limit(self, cloud: str, default: int = DEFAULT_CONCURRENT_CALLS) -> int:
        """How many calls to `cloud` may run at a time. "storage" stands for the buckets. `default`: the cloud's."""
        if cloud == "storage":
            return _STORAGE_CONCURRENT_CALLS
        return self.max_concurrent_calls.get(cloud) or default

    @property
    def limits_launches(self) -> bool:
        """Whether a launch may have to wait for other jobs' machines."""
        return self.max_running_jobs_per_user is not None or bool(self.max_machines)


def cloud_limit_keys(cloud: str, max_concurrent_calls: int = DEFAULT_CONCURRENT_CALLS) -> tuple[ConfigKey, ...]:
    """The keys that every cloud's section has. `max_concurrent_calls`: the default in the cloud's descriptor."""
    return (
        ConfigKey(
            f"{cloud}.max_concurrent_calls",
            "whole number",
            str(max_concurrent_calls),
            "How many calls to the cloud may run at a time.",
            "calls",
        ),
        ConfigKey(
            f"{cloud}.max_machines",
            "whole number",
            "null (no limit)",
            "How many of the cloud's machines all jobs together may have; further launches wait.",
            "machines",
        ),
    )


def read_quotas(source: ConfigFile) -> Quotas:
    """From config.yaml. Raises SettingsError, which names line and key."""
    return Quotas(
        max_jobs_per_user=_count(source, "limits", "max_jobs_per_user"),
        max_running_jobs_per_user=_count(source, "limits", "max_running_jobs_per_user"),
        max_concurrent_calls=_by_cloud(source, "max_concurrent_calls"),
        max_machines=_by_cloud(source, "max_machines"),
        requests_per_second=_requests_per_second(source),
    )


def _requests_per_second(source: ConfigFile) -> float | None:
    limits: Any = source.data.get("limits")
    if not isinstance(limits, Mapping) or "requests_per_second" not in limits:
        return DEFAULT_REQUESTS_PER_SECOND
    value = limits["requests_per_second"]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value < float("inf"):
        expected = "expected a number from 0.1, or null for no limit"
        raise source.error(("limits", "requests_per_second"), f"{expected}, found {value!r}")
    return float(value)


def read_job_bounds(source: ConfigFile) -> JobBounds:
    """From config.yaml. Raises SettingsError, which names line and key."""
    section = source.data.get("limits")
    limits: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    defaults = JobBounds()
    per_hour = limits.get("recoveries_per_hour", defaults.recoveries_per_hour)
    if per_hour is not None and (
        isinstance(per_hour, bool) or not isinstance(per_hour, int) or per_hour < _MIN_PER_HOUR
    ):
        expected = f"expected a whole number from {_MIN_PER_HOUR}, or null for no limit"
        raise source.error(("limits", "recoveries_per_hour"), f"{expected}, found {per_hour!r}")
    max_log, reserve = defaults.max_log_bytes, defaults.disk_reserve_bytes
    if "max_log_gib" in limits:
        max_log = _gib(source, limits["max_log_gib"], "max_log_gib") if limits["max_log_gib"] is not None else None
    if "disk_reserve_gib" in limits:
        reserve = _gib(source, limits["disk_reserve_gib"], "disk_reserve_gib", minimum=0.0)
    return JobBounds(per_hour, max_log, reserve)


def _gib(source: ConfigFile, value: Any, name: str, *, minimum: float = 0.001) -> int:
    """In bytes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value < float("inf"):
        raise source.error(("limits", name), f"expected GiB (a number from {minimum:g}), found {value!r}")
    return int(value * 2**30)


def _by_cloud(source: ConfigFile, name: str) -> dict[str, int]:
    limits = {cloud: _count(source, cloud, name) for cloud in installed_clouds()}
    return {cloud: limit for cloud, limit in limits.items() if limit is not None}


def _count(source: ConfigFile, section: str, name: str) -> int | None:
    values: Any = source.data.get(section)
    value = values.get(name) if isinstance(values, Mapping) else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise source.error((section, name), f"expected a whole number from 1, or null for no limit, found {value!r}")
    return value
