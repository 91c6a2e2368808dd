"""The machines that a task may run on: one `Resources`, or `Alternatives` of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perdure.sdk.spec import infra
from perdure.sdk.spec.accelerators import Accelerators
from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import Problem, TaskError, describe
from perdure.sdk.spec.resource_fields import INTERNAL_FIELDS, ONE_RESOURCES, without_defaults

_PLACE = ("infra", "cloud", "region", "zone")


@dataclass(frozen=True)
class Resources:
    """One alternative. Accepts every form of the YAML, holds canonical ones: `cpus="4+"`, `accelerators={"A100": 8}`.

    `cpus` counts vCPUs; `memory` and `disk_size` are in GiB; `max_hourly_cost` is in USD per machine. None means any.
    Give either `infra`, or `cloud`, `region` and `zone`. Raises TaskError.
    """

    cloud: str | None = field(default=None, repr=False)
    instance_type: str | None = None
    cpus: int | float | str | None = None
    memory: int | float | str | None = None
    accelerators: str | Accelerators | None = None
    accelerator_args: dict[str, Any] | None = None
    infra: str | None = None
    use_spot: bool = False
    job_recovery: str | dict[str, Any] | None = None
    region: str | None = field(default=None, repr=False)
    zone: str | None = field(default=None, repr=False)
    image_id: str | dict[str, str] | None = None
    disk_size: int | str | None = None
    ephemeral_storage: int | str | None = None
    disk_tier: str | None = None
    network_tier: str | None = None
    local_disk: str | None = None
    max_hourly_cost: float | None = None
    ports: int | str | list[str] | None = None
    labels: dict[str, str] | None = None
    autostop: bool | int | str | dict[str, Any] | None = None
    hooks: list[dict[str, Any]] | None = None
    priority: int | None = None
    priority_class: str | None = None
    volumes: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        report = Report()
        config = without_defaults(ONE_RESOURCES.parse(given, ("resources",), report))
        report.raise_if_invalid()
        config |= zip(("cloud", "region", "zone"), infra.parts(config.get("infra")), strict=True)
        for f in fields(self):
            object.__setattr__(self, f.name, config.get(f.name, f.default))

    def __hash__(self) -> int:
        return hash((self.infra, self.instance_type, self.cpus, self.memory, self.use_spot))

    @classmethod
    def from_yaml_config(cls, config: dict[str, Any] | None) -> Resources:
        """One alternative from its mapping; see `Alternatives.from_yaml_config` for `any_of` and `ordered`."""
        report = Report()
        canonical = ONE_RESOURCES.parse(config or {}, ("resources",), report)
        report.raise_if_invalid()
        return cls(**_own_fields(canonical))

    def to_yaml_config(self) -> dict[str, Any]:
        """The shortest equivalent mapping."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("cloud", "region", "zone")}
        return {name: value for name, value in named.items() if value is not None and value is not False}

    def copy(self, **changes: Any) -> Resources:
        """A copy with `changes`. A new place (`infra`, or any of `cloud`, `region`, `zone`) replaces the old one."""
        if any(name in changes for name in _PLACE):
            changes = dict.fromkeys(_PLACE) | changes
        else:
            changes |= dict.fromkeys(("cloud", "region", "zone"))
        return replace(self, **changes)


@dataclass(frozen=True)
class Alternatives:
    """The alternatives of a task."""

    options: tuple[Resources, ...] = (Resources(),)
    ordered: bool = False  # earlier options are tried first; otherwise the cheapest offer of all options

    def __iter__(self) -> Iterator[Resources]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    @classmethod
    def from_resources(cls, given: Resources | Iterable[Resources] | None) -> Alternatives:
        """From one, a set (any of them) or a list (in order), as SkyPilot's `Task` accepts them. Raises TaskError."""
        match given:
            case None:
                return cls()
            case Alternatives():
                return given
            case Resources():
                return cls((given,))
        options = tuple(given)
        if not options or not all(isinstance(option, Resources) for option in options):
            fix = "give a Resources, a list of them (in order), or a set of them (any)"
            raise TaskError([Problem("resources", f"found {describe(given)}", fix)])
        if isinstance(given, set | frozenset):
            options = tuple(sorted(options, key=repr))
            return cls(options)
        return cls(options, ordered=len(options) > 1)

    @classmethod
    def from_canonical(cls, config: dict[str, Any] | None) -> Alternatives:
        """From the canonical form of `resources`."""
        config = config or {}
        options = config.get("any_of") or config.get("ordered") or [config]
        return cls(tuple(Resources(**_own_fields(option)) for option in options), ordered="ordered" in config)

    def to_yaml_config(self) -> dict[str, Any]:
        configs = [option.to_yaml_config() for option in self.options]
        if len(configs) == 1:
            return configs[0]
        return {"ordered" if self.ordered else "any_of": configs}


def _own_fields(canonical: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in canonical.items() if name not in INTERNAL_FIELDS}
