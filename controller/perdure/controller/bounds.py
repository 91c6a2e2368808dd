"""How much at a time, as `config.yaml` says: calls and machines of a cloud, jobs of a user.

```yaml
limits: {most_jobs_per_user: 2000, most_running_per_user: 100}
aws: {most_in_flight: 64, most_machines: 200}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.controller.settings import ConfigFile

USER_FIELDS = ("most_jobs_per_user", "most_running_per_user")
CLOUD_FIELDS = ("most_in_flight", "most_machines")
_CLOUDS = ("local", "aws", "gcp", "azure")
_MOST_IN_FLIGHT = 64
# Machines of this computer, and buckets, whose work needs the database: they are no quicker by more at a time.
_USUAL = {"local": 16, "storage": 16}


@dataclass(frozen=True)
class Bounds:
    """None, and a cloud that is not named: no bound. `most_jobs_per_user`: that have not ended;
    `most_running_per_user`: that have machines. `most_in_flight` (calls) and `most_machines`: by cloud."""

    most_jobs_per_user: int | None = None
    most_running_per_user: int | None = None
    most_in_flight: Mapping[str, int] = field(default_factory=dict)
    most_machines: Mapping[str, int] = field(default_factory=dict)

    def in_flight(self, cloud: str) -> int:
        """How many calls of `cloud` may be under way at a time."""
        return self.most_in_flight.get(cloud) or _USUAL.get(cloud, _MOST_IN_FLIGHT)

    @property
    def caps_launches(self) -> bool:
        """Whether a launch can have to wait for others' machines."""
        return self.most_running_per_user is not None or bool(self.most_machines)


def read_bounds(source: ConfigFile) -> Bounds:
    """From config.yaml. Raises SettingsError, which names line and field."""
    jobs, running = (_count(source, "limits", name) for name in USER_FIELDS)
    in_flight, machines = (_of_clouds(source, name) for name in CLOUD_FIELDS)
    return Bounds(jobs, running, in_flight, machines)


def _of_clouds(source: ConfigFile, name: str) -> dict[str, int]:
    found = {cloud: _count(source, cloud, name) for cloud in _CLOUDS}
    return {cloud: most for cloud, most in found.items() if most is not None}


def _count(source: ConfigFile, section: str, name: str) -> int | None:
    values: Any = source.data.get(section)
    value = values.get(name) if isinstance(values, Mapping) else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise source.error((section, name), f"expected a whole number from 1, or null for no bound, found {value!r}")
    return value
