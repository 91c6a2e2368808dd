"""Quotas from config.yaml: the calls and machines of each cloud, the jobs of each user.

```yaml
limits: {max_jobs_per_user: 2000, max_running_jobs_per_user: 100}
aws: {max_concurrent_calls: 64, max_machines: 200}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.runtime.config.config_file import ConfigFile
from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.sdk.installed_clouds import installed_clouds

DEFAULT_CONCURRENT_CALLS = 64
CLOUD_LIMITS = ("max_concurrent_calls", "max_machines")  # keys of every cloud's section
# Calls for buckets also wait for the database, so more of them at a time are not faster.
_STORAGE_CONCURRENT_CALLS = 16

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
)


@dataclass(frozen=True)
class Quotas:
    """None, and a cloud that a mapping does not contain, mean no limit."""

    max_jobs_per_user: int | None = None  # unfinished jobs
    max_running_jobs_per_user: int | None = None  # jobs that have machines
    max_concurrent_calls: Mapping[str, int] = field(default_factory=dict)  # by cloud
    max_machines: Mapping[str, int] = field(default_factory=dict)  # by cloud

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
    )


def _by_cloud(source: ConfigFile, name: str) -> dict[str, int]:
    limits = {cloud: _count(source, cloud, name) for cloud in installed_clouds()}
    return {cloud: limit for cloud, limit in limits.items() if limit is not None}


def _count(source: ConfigFile, section: str, name: str) -> int | None:
    values: Any = source.data.get(section)
    value = values.get(name) if isinstance(values, Mapping) else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise source.error((section, name), f"expected a whole number from 1, or null for no limit, found {value!r}")
    return value
